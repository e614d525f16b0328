--[[
A replica lives, and learns whether Redis has lost what it held. Once a second per replica, and after every reconnection.

The epoch is one life of the data: it ends when the keys are gone or when another server (another run id) serves them,
because that server may lack the last acknowledged writes. Who knew an earlier epoch makes the new one a `change`; a
`first` one is nobody's loss.

After an absence of Redis the replicas come back one after the other: the moment at which the first one came is reported to
those who come while nobody is sent (1.3 s, `settlingMs` of the replicas). Who comes later begins anew: it may be another
absence.

KEYS  1 epoch  2 replicas  3 back
ARGV  1 replica  2 run id of the server  3 start of the epoch the replica knows ('' = none)  4 now ('' = TIME)
      5 the replica was without Redis until now (1, '')
Reply { start of the epoch, first | change, now, replicas heard of in the last 5 s, ms since the first one came back
        ('' = not lately) }
]]
local lifeMs, memoryMs, settlingMs = 5000, 86400000, 1300
local function text(value) return string.format('%.17g', value) end
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
  since, kind = text(now), ARGV[3] == '' and 'first' or 'change'
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
return { since, kind, text(now), redis.call('ZCARD', KEYS[2]), back and text(now - back) or '' }
