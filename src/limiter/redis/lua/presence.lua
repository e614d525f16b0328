--[[
A replica lives: once a second, and after every reconnection.

KEYS  1 replicas (sorted set: replica by its last heartbeat)
ARGV  1 replica
Reply { replicas heard of in the last 5 s, 1 = this one was not known, 2 = its last one lies in the future (0), run id of the server ('' = the user may not ask) }
]]
local lifeMs, now = 5000, serverMs()
-- The clock of Redis may have been set back.
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
local wasSetBack = last and tonumber(last) >= now + lifeMs
-- First: a Redis without memory refuses what takes some only until a script has written.
local isNew = redis.call('ZADD', KEYS[1], text(now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], text(now + lifeMs), '+inf')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - lifeMs))
redis.call('PEXPIRE', KEYS[1], 4 * lifeMs)
return { redis.call('ZCARD', KEYS[1]), wasSetBack and 2 or isNew, serverId() or '' }
