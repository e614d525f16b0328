/**
 * What replicas say to Redis about calls that may be repeated: scripts over a few small keys. A claim is the text
 * `<fingerprint> <holder> <state> [<arrival>]` (`claim.ts`; arrival, of a call that was left, is the time on Redis' clock).
 *
 * Owns: the scripts. Keeps: every written key gets an expiry, and Redis' `TIME` is the only clock.
 */
import { statesOfHolder } from './claim.ts';

const clock = `local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`;

/** A holder is `<replica>.<number>`. Nobody has a claim whose call is over, or was left. */
const readClaims = `local function replicaOf(claim) return string.match(claim, '^%S+ ([^ .]+)') end
local function isNobodys(claim)
  local state = claim and string.match(claim, '^%S+ %S+ (%S+)')
  return not claim or state == 'free' or state == 'left'
end`;

const stateLost = statesOfHolder.map((state) => `state == '${state}'`).join(' or ');

/**
 * Takes the claim unless somebody has it. KEYS claim, life · ARGV the claim, its life, the time that claims need to be put
 * back, life of the life key, the time for which a claim stays behind whose replica is gone (all milliseconds), `look` = take
 * nothing. Reply: the life key and what came of it: `wait` while others put back what Redis has lost; `taken`, the age of its
 * arrival or '', 1 when the replica is gone that had it; `known` and the claim; `none`.
 */
export const claimScript = `${clock}
local life = redis.call('GET', KEYS[2])
if not life then
  life = string.format('%.0f', now + ARGV[3])
  redis.call('SET', KEYS[2], life, 'PX', ARGV[4])
end
local known = redis.call('GET', KEYS[1])
local state = known and string.match(known, '^%S+ %S+ (%S+)')
local isLost = (${stateLost}) and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[5])
if known and not isLost and state ~= 'free' and state ~= 'left' then return {life, 'known', known} end
if not known and now < tonumber(life) then return {life, 'wait'} end
local arrival = state == 'left' and string.match(known, '(%S+)$')
if arrival or isLost then redis.call('DEL', KEYS[1]) end
if ARGV[6] ~= 'look' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
elseif not arrival and not isLost then return {life, 'none'} end
return {life, 'taken', arrival and tostring(now - tonumber(arrival)) or '', isLost and 1 or 0}`;

/**
 * Keeps the claims of one replica. KEYS life, claims … · ARGV life of the life key, time to put back, life of a claim, the claims.
 * Reply: the life key, which is another one after a loss, the places (from 1) of claims whose answer somebody waits for, and of
 * claims that another replica has.
 */
export const renewScript = `${clock}
${readClaims}
redis.call('SET', KEYS[1], string.format('%.0f', now + ARGV[2]), 'NX', 'PX', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local wanted, taken = {}, {}
for at = 2, #KEYS do
  local known, own = redis.call('GET', KEYS[at]), ARGV[at + 2]
  if isNobodys(known) or known == own then redis.call('SET', KEYS[at], own, 'PX', ARGV[3])
  elseif replicaOf(known) ~= replicaOf(own) then taken[#taken + 1] = at - 1 end
  if redis.call('EXISTS', (string.gsub(KEYS[at], ':claim:', ':wanted:'))) == 1 then wanted[#wanted + 1] = at - 1 end
end
return {redis.call('GET', KEYS[1]), wanted, taken}`;

/**
 * Changes a claim that is the replica's own, or that nobody has. KEYS claim, wanted, life · ARGV holder, the new claim, its life, and
 * the age of its arrival where the claim is left (else empty). Reply: 1 when somebody waits for the answer, 1 when another
 * replica has the claim, the life key or ''.
 */
export const changeScript = `${clock}
${readClaims}
local known = redis.call('GET', KEYS[1])
local isOwn = isNobodys(known) or string.match(known, '^%S+ (%S+)') == ARGV[1]
if isOwn then
  local text = ARGV[2]
  if ARGV[4] ~= '' then text = text .. ' ' .. string.format('%.0f', now - tonumber(ARGV[4])) end
  redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
end
local isTaken = not isOwn and replicaOf(known) ~= replicaOf(ARGV[2])
return {redis.call('EXISTS', KEYS[2]), isTaken and 1 or 0, redis.call('GET', KEYS[3]) or ''}`;

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
