--[[
A replica lives, and learns whether Redis has lost what it held. Once a second per replica, and after every reconnection.

The epoch is one life of the data: it ends when the keys are gone or when another server (another run id) serves them,
because that server may lack the last acknowledged writes. Who knew an earlier epoch makes the new one a `change`; a
`first` one is nobody's loss. A new replica that finds no epoch knows no earlier one, and may come before those that do: it
makes a `change` while another replica is subscribed to the channel of the living, which a replica is from its first
answered heartbeat on. Subscriptions are no data and outlast FLUSHALL; a replica that is counted knows an epoch, so it is
never counted by itself. In a Cluster only subscriptions at this node count. What a broken subscription hides becomes a
`change` with the next heartbeat of the replica that knew the earlier epoch.

After an absence of Redis the replicas come back one after the other: the moment at which the first one came is reported to
those who come while nobody is sent (1.3 s, `settlingMs` of the replicas). Who comes later begins anew: it may be another
absence.

After a loss serialized calls are held for one lease, because calls of which Redis knows nothing any more may be under way. A loss
within such a hold does not begin a new one: none of these calls was sent meanwhile, so the first hold outlasts all that may be lost.

KEYS  1 epoch  2 replicas  3 back  4 hold (start of the epoch, start of the hold)
ARGV  1 replica  2 run id of the server  3 start of the epoch the replica knows ('' = none)  4 now ('' = TIME)
      5 the replica was without Redis until now (1, '')  6 ms since the hold began that the replica knows ('' = none)
      7 length of a lease, ms  8 channel of the living
Reply { start of the epoch, first | change, now, replicas heard of in the last 5 s, ms since the first one came back
        ('' = not lately), ms since the hold of serialized calls began }
]]
local lifeMs, memoryMs, settlingMs, holdMemoryMs = 5000, 86400000, 1300, 60000
local function text(value) return string.format('%.17g', value) end
-- A user of Redis without the right to ask counts nobody.
local function anybodyLives()
  local counted = redis.pcall('PUBSUB', 'NUMSUB', ARGV[8])
  return (tonumber(counted[2] or nil) or 0) > 0
end
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local runId, since, kind
local known = redis.call('GET', KEYS[1])
if known then
  runId, since, kind = string.match(known, '^(%S+) (%S+) (%S+)$')
  if runId ~= ARGV[2] then
    since, kind = text(now), 'change'
  elseif kind == 'first' and ARGV[3] ~= '' and ARGV[3] ~= since then
    kind = 'change'
  end
else
  since, kind = text(now), (ARGV[3] ~= '' or anybodyLives()) and 'change' or 'first'
end
local heldEpoch, held = string.match(redis.call('GET', KEYS[4]) or '', '^(%S+) (%S+)$')
if runId ~= ARGV[2] then
  local knownMs = tonumber(ARGV[6])
  held = knownMs and knownMs < tonumber(ARGV[7]) and text(now - knownMs) or since
  redis.call('SET', KEYS[4], since .. ' ' .. held, 'PX', holdMemoryMs)
elseif heldEpoch ~= since then
  held = since
end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. since .. ' ' .. kind, 'PX', memoryMs)
local back = tonumber(redis.call('GET', KEYS[3]) or nil)
if ARGV[5] == '1' and (not back or back + settlingMs <= now) then
  back = now
  redis.call('SET', KEYS[3], text(back), 'PX', lifeMs)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - lifeMs))
redis.call('ZADD', KEYS[2], text(now), ARGV[1])
redis.call('PEXPIRE', KEYS[2], 2 * lifeMs)
return { since, kind, text(now), redis.call('ZCARD', KEYS[2]), back and text(now - back) or '',
  text(now - tonumber(held)) }
