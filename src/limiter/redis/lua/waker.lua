-- Which replica is the pump leader: the one that pumps again when the next grant may be possible. A replica becomes the leader by a
-- reply that gives it that time, and has promised to pump then. The other replicas rely on the promise and pump only later, in case
-- the leader has died. A replica takes the promise over when the promised time has passed without a pump, or when a grant may be
-- possible earlier. The state of the bucket keeps the promise (`promisedBy`, `promisedAt`).
local promised
do
  -- A promise stays when its time is up to this much later than the next possible grant.
  local promiseSlackMs = 2
  -- A promise stays until its time was this long ago.
  local promiseGraceMs = 30

  -- True when the replica that asks is the pump leader from now on: it has promised to pump at `nextAt`.
  function promised(now)
    -- No promise is left when nobody waits, or when a pump has found no time for the next grant.
    if bucket.waiting == 0 or (pumped and not nextAt) then bucket.promisedBy, bucket.promisedAt = false, false end
    if not nextAt or bucket.waiting == 0 then return false end
    local at = bucket.promisedAt
    local isOthers = at and bucket.promisedBy ~= ownReplica
    if isOthers and at <= nextAt + promiseSlackMs and at + promiseGraceMs >= now then return false end
    bucket.promisedBy, bucket.promisedAt = ownReplica, nextAt
    return true
  end
end
