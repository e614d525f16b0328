--[[
Changes a breaker if its stored version is still the one that the asking replica knows (compare and set), and informs the other
replicas. The replicas decide which state follows (`breaker.policy.ts`); this script only decides which of them came first.

KEYS  1 breaker  2 replicas  3 names of all breakers, for replicas that come later
ARGV  1 replica  2 put | take | close | read | names  3 version that the replica knows ('' = none)
      4 version  5 open | probing  6 status  7 refusals  8 what was said  9 ms until the state's time
      10 ms for which it is remembered  11 names for the others: key, upstream and credential, with blanks between
put: stored where nothing is stored or the version is the known one. take: the same, but what was closed stays closed.
close: nothing is stored any more, whatever was. read: nothing changes. The last eight matter to put and take only.
names: the reply is not a breaker but the names of at most `namesAtOnce`, those that are remembered longest first.
Reply { version, open | probing, status, refusals, ms left, what was said } as it is then; empty = closed.
Message to the other replicas: `b`, the names, and what the reply says, with blanks between.
]]
local key, replicas, ownReplica, operation, known = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local replicaChannel, namesAtOnce = 'sluice:r:', 100
if operation == 'names' then return redis.call('ZREVRANGE', KEYS[3], 0, namesAtOnce - 1) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000

local function stored()
  local text = redis.call('GET', key)
  if not text then return {} end
  local version, kind, status, refusals, said, at = string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return { version, kind, status, refusals, string.format('%.17g', math.max(0, tonumber(at) - now)), said }
end

local function publish(state)
  local words = state[1] and ' ' .. table.concat(state, ' ') or ''
  for _, replica in ipairs(redis.call('ZRANGE', replicas, 0, -1)) do
    if replica ~= ownReplica then redis.call('PUBLISH', replicaChannel .. replica, 'b ' .. ARGV[11] .. words) end
  end
end

local state = stored()
if operation == 'close' then
  redis.call('ZREM', KEYS[3], ARGV[11])
  if redis.call('DEL', key) == 1 then publish({}) end
  return {}
end
local isKnown = (state[1] or '') == known
local mayChange = isKnown or (operation == 'put' and not state[1])
if operation ~= 'read' and mayChange then
  local at = string.format('%.17g', now + tonumber(ARGV[9]))
  local text = table.concat({ ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], at }, ' ')
  local memoryMs = math.ceil(tonumber(ARGV[10]))
  redis.call('SET', key, text, 'PX', memoryMs)
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.17g', now))
  redis.call('ZADD', KEYS[3], string.format('%.17g', now + memoryMs), ARGV[11])
  if redis.call('PTTL', KEYS[3]) < memoryMs then redis.call('PEXPIRE', KEYS[3], memoryMs) end
  state = stored()
  publish(state)
end
return state
