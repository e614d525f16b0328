--[[
A message to all other replicas. Nothing is stored.

KEYS  1 replicas
ARGV  1 replica  2 message
Reply how many replicas it was sent to.
]]
local replicas, ownReplica, message = KEYS[1], ARGV[1], ARGV[2]
local replicaChannel = 'sluice:r:'
local sent = 0
for _, replica in ipairs(redis.call('ZRANGE', replicas, 0, -1)) do
  if replica ~= ownReplica then
    redis.call('PUBLISH', replicaChannel .. replica, message)
    sent = sent + 1
  end
end
return sent
