--[[
A replica lives, and learns whether Redis has lost what it held. Once a second per replica, and after every reconnection.

An epoch is one life of the data. Its record numbers the epochs (`order`, growing) and counts the heartbeats, so that what a replica has seen
last and what is here can be compared: a record that is gone, or older than what a replica has seen, shows that data was lost (FLUSHALL, a
restart without the data or with those of a backup, a new primary without the last writes), and begins a new epoch. Both
numbers only grow while the data goes on, and every replica takes over what it reads here. So heartbeats cannot undo each
other's epochs: a replica can declare one only if the data has gone back since its own latest heartbeat.

Another server (another run id) that has the record may all the same lack what was written after the latest heartbeat. That
alone is no loss: it makes every replica that was alive check what it holds (a doubt). The doubt ends when all of them have
found everything. If one misses something, or does not report within the life of a replica, a new epoch begins. The run id is
read here, at the server that has the data, because a connection may lead to another server than a moment ago. A replica that
attaches, a backup and other changes of `master_replid` concern nobody.

The first epoch is nobody's loss, unless a replica that finds no record may have come before those that knew one: while
another replica is subscribed to the channel of the living, which a replica is from its first answered heartbeat on, the
epoch begins with a loss. Subscriptions are no data and outlast FLUSHALL; a replica that is counted knows an epoch, so it is
never counted by itself. In a Cluster only subscriptions at this node count. What a broken subscription hides becomes a new
epoch with the next heartbeat of the replica that knew the earlier one.

After an absence of Redis the replicas come back one after the other: the moment at which the first one came is reported to
those who come while nobody is sent (1.3 s, `settlingMs` of the replicas). Who comes later begins anew: it may be another
absence.

After a loss serialized calls are held for one lease, because calls of which Redis knows nothing any more may be under way. A loss
within such a hold does not begin a new one: none of these calls was sent meanwhile, so the first hold outlasts all that may be lost.

KEYS  1 record  2 replicas  3 back  4 replicas that have not checked yet
ARGV  1 replica  2 order of the epoch the replica knows ('' = none)  3 its start  4 heartbeats that the replica knows of
      5 now ('' = TIME)  6 the replica was without Redis until now (1, '')  7 ms since the hold began that the replica knows
      ('' = none)  8 length of a lease, ms  9 channel of the living  10 doubt in which the replica has checked ('' = none)
      11 what it found: whole | missing  12 a primary of the Cluster changed (1, '')
Reply { order, start of the epoch, first | change, heartbeats, now, replicas heard of in the last 5 s, ms since the first one
        came back ('' = not lately), ms since the hold of serialized calls began, doubt ('' = none), ms since it began }
]]
local lifeMs, memoryMs, settlingMs = 5000, 86400000, 1300
local leaseMs = tonumber(ARGV[8]) or lifeMs
local function text(value) return string.format('%.17g', value) end
-- A user of Redis without the right to ask counts nobody.
local function anybodyLives()
  local counted = redis.pcall('PUBSUB', 'NUMSUB', ARGV[9])
  return (tonumber(counted[2] or nil) or 0) > 0
end
-- '' where the user of Redis has no right to ask.
local function runId()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
local now = tonumber(ARGV[5])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
-- Another application may have written here: what cannot be used is replaced.
for at, kind in ipairs({ 'hash', 'zset', 'string', 'zset' }) do
  local found = redis.call('TYPE', KEYS[at]).ok
  if found ~= 'none' and found ~= kind then redis.call('DEL', KEYS[at]) end
end
local knownOrder, knownBeats = tonumber(ARGV[2]), tonumber(ARGV[4]) or 0
local record = redis.call('HMGET', KEYS[1], 'order', 'start', 'kind', 'beats', 'held', 'server', 'doubt')
local order, start, kind, beats = tonumber(record[1] or nil), record[2], record[3], tonumber(record[4] or nil) or 0
local held, server = tonumber(record[5] or nil) and record[5] or text(now), record[6] or ''
local doubt = tonumber(record[7] or nil) and record[7] or ''
local own = runId()
-- The leases of a replica that has been silent for longer have run out.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - leaseMs))

local isGone = not order or not tonumber(start or nil)
local isBack = not isGone and knownOrder
  and (knownOrder > order or knownOrder == order and (ARGV[3] ~= start or knownBeats > beats))
-- Who began it took a loss for the first start.
local wasLoss = not isGone and kind == 'first' and knownOrder and knownOrder < order
local isChecked = doubt ~= '' and ARGV[10] == doubt
if isChecked and ARGV[11] == 'whole' then redis.call('ZREM', KEYS[4], ARGV[1]) end
local isOver = doubt ~= '' and redis.call('ZCARD', KEYS[4]) == 0
-- The clock of Redis may have been set, in either direction.
local isLate = doubt ~= '' and not isOver and math.abs(now - tonumber(doubt)) >= lifeMs
if isGone or isBack or wasLoss or isLate or isChecked and ARGV[11] == 'missing' then
  local isFirst = isGone and not knownOrder and not anybodyLives()
  -- A new replica knows no earlier epoch: by the clock its own comes after those that others know.
  order = math.max((order or 0) + 1, (knownOrder or 0) + 1, math.floor(now))
  start, kind = text(now), isFirst and 'first' or 'change'
  local knownMs = tonumber(ARGV[7])
  held = knownMs and knownMs < leaseMs and text(now - knownMs) or start
  beats, doubt = math.max(beats, knownBeats), ''
elseif ARGV[12] == '1' or own ~= '' and server ~= '' and own ~= server then
  redis.call('ZUNIONSTORE', KEYS[4], 1, KEYS[2])
  doubt = redis.call('ZCARD', KEYS[4]) > 0 and text(now) or ''
elseif isOver then
  doubt = ''
end
if doubt == '' then redis.call('DEL', KEYS[4]) else redis.call('PEXPIRE', KEYS[4], memoryMs) end
beats = beats + 1
redis.call('HSET', KEYS[1], 'order', order, 'start', start, 'kind', kind, 'beats', text(beats), 'held', held,
  'server', own ~= '' and own or server, 'doubt', doubt)
redis.call('PEXPIRE', KEYS[1], memoryMs)

local back = tonumber(redis.call('GET', KEYS[3]) or nil)
if back and back > now then back = nil end
if ARGV[6] == '1' and (not back or back + settlingMs <= now) then
  back = now
  redis.call('SET', KEYS[3], text(back), 'PX', lifeMs)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], text(now + lifeMs), '+inf')
redis.call('ZADD', KEYS[2], text(now), ARGV[1])
redis.call('PEXPIRE', KEYS[2], lifeMs + leaseMs)
return { order, start, kind, text(beats), text(now),
  redis.call('ZCOUNT', KEYS[2], '(' .. text(now - lifeMs), '+inf'), back and text(now - back) or '',
  text(now - tonumber(held)), doubt, doubt == '' and '' or text(now - tonumber(doubt)) }
