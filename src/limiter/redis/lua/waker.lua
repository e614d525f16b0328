-- Which replica checks again when the next grant may be possible. One replica at a time promises it, in the reply that gives it the
-- time; the others rely on its pump and check only later, in case it died. Whoever finds the promise broken,
-- or a time before the promised one, promises anew. Kept beside the policy's data, as field `p` of the records.
local promiseSlackMs = 2
local promiseGraceMs = 30

-- True: the replica that asks has promised to pump at `nextAt`. Waiting tickets keep the records, and so their expiry, alive.
local function promised(now)
  -- A promise is for the time of the next pump: without one it is void.
  if bucket.waiting == 0 or (pumped and not nextAt) then redis.call('HDEL', recordsKey, 'p') end
  if not nextAt or bucket.waiting == 0 then return false end
  local known = redis.call('HGET', recordsKey, 'p')
  if known then
    local replica, at = string.match(known, '^(%S+) (%S+)$')
    at = tonumber(at)
    if replica ~= ownReplica and at <= nextAt + promiseSlackMs and at + promiseGraceMs >= now then return false end
  end
  redis.call('HSET', recordsKey, 'p', ownReplica .. ' ' .. string.format('%.17g', nextAt))
  return true
end
