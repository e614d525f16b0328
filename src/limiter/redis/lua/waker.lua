-- Which replica checks again when the next grant may be possible. One replica at a time promises it, in the reply that gives it the
-- time; the others rely on its pump and check only later, in case it died. Whoever finds the promise broken,
-- or a time before the promised one, promises anew. Kept beside the policy's data, in the state of the bucket.
local promised
do
  local promiseSlackMs = 2
  local promiseGraceMs = 30

  -- True: the replica that asks has promised to pump at `nextAt`.
  function promised(now)
    -- A promise is for the time of the next pump: without one it is void.
    if bucket.waiting == 0 or (pumped and not nextAt) then bucket.promisedBy, bucket.promisedAt = false, false end
    if not nextAt or bucket.waiting == 0 then return false end
    local at = bucket.promisedAt
    local isOthers = at and bucket.promisedBy ~= ownReplica
    if isOthers and at <= nextAt + promiseSlackMs and at + promiseGraceMs >= now then return false end
    bucket.promisedBy, bucket.promisedAt = ownReplica, nextAt
    return true
  end
end
