--[[
The calls of a bucket count against a quota. The first bucket of which that is said stands for the quota; another one is
joined into it, for all replicas, and the others hear of it. Only a bucket that is not joined itself is joined, and never into
one that leads back to it, so that following the record always ends.

KEYS  1 quota  2 joined buckets (each with the one into which it was joined)  3 replicas
ARGV  1 replica  2 bucket  3 ms for which all this is remembered  4 joined buckets at most
Reply the bucket that stands for the quota.
Message to the other replicas: `q`, the bucket that was joined and the one into which, with blanks between.
]]
local quota, joined, replicas = KEYS[1], KEYS[2], KEYS[3]
local ownReplica, bucket, memoryMs, maxJoined = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local replicaChannel = 'sluice:r:'

local function standsFor(name)
  local into = redis.call('HGET', joined, name)
  while into do
    name = into
    into = redis.call('HGET', joined, name)
  end
  return name
end

local own = standsFor(bucket)
local owner = redis.call('GET', quota)
if not owner then
  redis.call('SET', quota, own, 'PX', memoryMs)
  redis.call('PEXPIRE', joined, memoryMs)
  return own
end
redis.call('PEXPIRE', quota, memoryMs)
local into = standsFor(owner)
if into ~= own then
  if redis.call('HLEN', joined) >= maxJoined then return own end
  redis.call('HSET', joined, own, into)
  for _, replica in ipairs(redis.call('ZRANGE', replicas, 0, -1)) do
    if replica ~= ownReplica then redis.call('PUBLISH', replicaChannel .. replica, 'q ' .. own .. ' ' .. into) end
  end
end
redis.call('PEXPIRE', joined, memoryMs)
return into
