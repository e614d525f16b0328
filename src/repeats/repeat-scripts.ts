/**
 * What replicas say to Redis about calls that may be repeated: scripts over a few small keys. A claim is the text
 * `<fingerprint> <holder> <state> [<arrival>]`, where the state is `held`, `streaming`, `kept`, `too_large`, `free` (ended, and what
 * came of it is not kept) or `left` (its client left it while it waited; arrival is the time on Redis' clock).
 *
 * Owns: the scripts. Keeps: every written key gets an expiry, and Redis' `TIME` is the only clock.
 */

const clock = `local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`;

/**
 * Takes the claim unless somebody has it. KEYS claim, life · ARGV the claim, its life, the time that claims need to be put
 * back, life of the life key (all milliseconds), `look` = take nothing.
 * Reply: `{'wait'}` while others put back what Redis has lost, `{'taken', age or ''}`, `{'known', claim}`, `{'none'}`.
 */
export const claimScript = `${clock}
local life = redis.call('GET', KEYS[2])
if not life then
  life = now + ARGV[3]
  redis.call('SET', KEYS[2], life, 'PX', ARGV[4])
end
if now < tonumber(life) then return {'wait'} end
local known = redis.call('GET', KEYS[1])
local state = known and string.match(known, '^%S+ %S+ (%S+)')
if known and state ~= 'free' and state ~= 'left' then return {'known', known} end
local arrival = state == 'left' and string.match(known, '(%S+)$')
if arrival then redis.call('DEL', KEYS[1]) end
if ARGV[5] ~= 'look' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
elseif not arrival then return {'none'} end
return {'taken', arrival and tostring(now - tonumber(arrival)) or ''}`;

/**
 * Keeps the claims of one replica. KEYS life, claims … · ARGV life of the life key, time to put back, life of a claim, the claims.
 * Reply: the life key, which is another one after a loss, and the places (from 1) of claims whose answer somebody waits for.
 */
export const renewScript = `${clock}
redis.call('SET', KEYS[1], now + ARGV[2], 'NX', 'PX', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local wanted = {}
for at = 2, #KEYS do
  local known = redis.call('GET', KEYS[at])
  if not known or known == ARGV[at + 2] then redis.call('SET', KEYS[at], ARGV[at + 2], 'PX', ARGV[3]) end
  if redis.call('EXISTS', (string.gsub(KEYS[at], ':claim:', ':wanted:'))) == 1 then wanted[#wanted + 1] = at - 1 end
end
return {redis.call('GET', KEYS[1]), wanted}`;

/**
 * Changes a claim that is the replica's own, or that nobody has. KEYS claim, wanted · ARGV holder, the new claim, its life, and
 * the age of its arrival where the claim is left (else empty). Reply: 1 when somebody waits for the answer.
 */
export const changeScript = `${clock}
local known = redis.call('GET', KEYS[1])
if not known or string.match(known, '^%S+ (%S+)') == ARGV[1] then
  local text = ARGV[2]
  if ARGV[4] ~= '' then text = text .. ' ' .. (now - tonumber(ARGV[4])) end
  redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
end
return redis.call('EXISTS', KEYS[2])`;

/**
 * Counts a kept answer, and names those that have to go: the oldest of the workspace beyond its bytes, the oldest of all
 * beyond theirs. KEYS index, bytes · ARGV owner, name, bytes, life, bytes of an owner, bytes of all. Reply: names.
 */
export const indexScript = `${clock}
local gone = {}
local function drop(member, isEvicted)
  local owner, name, size = string.match(member, '^(%S+) (%S+) (%d+)$')
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZREM', KEYS[1] .. ':' .. owner, member)
  for _, field in ipairs({'all', owner}) do
    if redis.call('HINCRBY', KEYS[2], field, -size) <= 0 then redis.call('HDEL', KEYS[2], field) end
  end
  if isEvicted then gone[#gone + 1] = name end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)) do drop(member, false) end
local own = KEYS[1] .. ':' .. ARGV[1]
local member = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
if redis.call('ZSCORE', KEYS[1], member) then drop(member, false) end
redis.call('ZADD', KEYS[1], now + ARGV[4], member)
redis.call('ZADD', own, now + ARGV[4], member)
redis.call('HINCRBY', KEYS[2], 'all', ARGV[3])
redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[3])
local function shrink(index, field, bound)
  while tonumber(redis.call('HGET', KEYS[2], field) or 0) > tonumber(bound) do
    local oldest = redis.call('ZRANGE', index, 0, 0)[1]
    if not oldest then return end
    drop(oldest, true)
  end
end
shrink(own, ARGV[1], ARGV[5])
shrink(KEYS[1], 'all', ARGV[6])
for _, key in ipairs({KEYS[1], own, KEYS[2]}) do redis.call('PEXPIRE', key, ARGV[4]) end
return gone`;
