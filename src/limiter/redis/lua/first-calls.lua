-- Mirror of first-calls.policy.ts: how many calls may be on their way while nobody knows whether the upstream takes them.
-- Lua allows 200 local names in one function: one table holds what others call.
local firstCalls = {}
do
  -- @constant probeDoublingMs maxDoublings silenceMs pilotMs pilotCrowd

  -- Before the first response only a few calls may be on their way; `now` or earlier = one more may go.
  local function probeTime(now)
    if bucket.opened or bucket.probe <= 0 or not bucket.probingSince then return now end
    local steps = math.min(maxDoublings, math.floor((now - bucket.probingSince) / probeDoublingMs))
    if bucket.leases < bucket.probe * 2 ^ steps then return now end
    return bucket.probingSince + (steps + 1) * probeDoublingMs
  end

  local function pilotTime(now)
    if not bucket.pilotAfter or not bucket.lastGrantAt or bucket.waiting < pilotCrowd then return now end
    return bucket.lastGrantAt + pilotMs
  end

  function firstCalls.nextFirstCallAt(now) return math.max(probeTime(now), pilotTime(now)) end

  -- A call is granted, and is out of the line already: it may be a pilot for those that wait.
  function firstCalls.notePilot(now)
    local last = bucket.lastGrantAt
    bucket.pilotAfter = last and now - last >= silenceMs and bucket.waiting >= pilotCrowd and last or false
  end

  -- What becomes of the lease's call is known.
  function firstCalls.endPilot(lease)
    if lease.grantedAt == bucket.lastGrantAt then bucket.pilotAfter = false end
  end

  -- The lease's call did not go: if it was the pilot, the silence goes on, and the next one is.
  function firstCalls.recallPilot(lease)
    if bucket.pilotAfter and lease.grantedAt == bucket.lastGrantAt then bucket.lastGrantAt = bucket.pilotAfter end
  end
end
