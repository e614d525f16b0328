/**
 * The scripts by which replicas claim calls that may be repeated, and count kept responses: each runs over a few small keys in Redis. A
 * claim is the text `<fingerprint> <holder> <state> [<arrival>]` (`claim.ts`). Only the claim of a call that was left has an arrival,
 * in milliseconds of Redis' clock.
 *
 * The epoch key exists as long as the data in Redis does, because every renewal extends its expiry. Its value is the time until which claims of the epoch before may still be
 * put back, in milliseconds of Redis' clock: two epochs have different values, by which a replica notices that Redis lost its data.
 *
 * Owns: the scripts. Does not own: what replicas do with the replies (`redis-repeats.ts`).
 * Keeps: every written key gets an expiry, and Redis' `TIME` is the only clock. All times are milliseconds.
 */
import { renewedStates } from './claim.ts';

const clock = `local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`;

/** A holder is `<replica>.<number>`. A claim in state `free` or `left` belongs to nobody. */
const readClaims = `local function replicaOf(claim) return string.match(claim, '^%S+ ([^ .]+)') end
local function isNobodys(claim)
  local state = claim and string.match(claim, '^%S+ %S+ (%S+)')
  return not claim or state == 'free' or state == 'left'
end`;

/** Lua: true for a state in which only the claim's replica has the result, so that the claim is of no use without that replica. */
const isRenewedState = renewedStates.map((state) => `state == '${state}'`).join(' or ');

/**
 * Takes the claim unless it belongs to somebody. A claim is orphaned when it was not renewed, so that its replica is gone: it stays
 * for a while as a trace, and then counts as nobody's.
 *
 * KEYS: 1 claim, 2 epoch key.
 * ARGV: 1 the new claim's text, 2 its expiry, 3 the time for which a new epoch waits for claims that are put back, 4 expiry of the
 * epoch key, 5 an orphaned claim has at most this left until its expiry.
 * Reply: the epoch key's value, then one of
 *   `wait`: Redis knows no claim, and others may still put one back
 *   `taken`, age of the arrival of the call that was left or '', 1 when the former claim was orphaned, else 0
 *   `known`, the claim's text: it belongs to somebody
 */
export const claimScript = `${clock}
local epoch = redis.call('GET', KEYS[2])
if not epoch then
  epoch = string.format('%.0f', now + ARGV[3])
  redis.call('SET', KEYS[2], epoch, 'PX', ARGV[4])
end
local known = redis.call('GET', KEYS[1])
local state = known and string.match(known, '^%S+ %S+ (%S+)')
local isOrphaned = (${isRenewedState}) and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[5])
if known and not isOrphaned and state ~= 'free' and state ~= 'left' then return {epoch, 'known', known} end
if not known and now < tonumber(epoch) then return {epoch, 'wait'} end
local arrival = state == 'left' and string.match(known, '(%S+)$')
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {epoch, 'taken', arrival and tostring(now - tonumber(arrival)) or '', isOrphaned and 1 or 0}`;

/**
 * Renews the claims of one replica, and puts back those that Redis has lost.
 *
 * KEYS: 1 epoch key, 2 and following the claims. The `wanted` key of each, which is named like the claim, is read too.
 * ARGV: 1 expiry of the epoch key, 2 the time for which a new epoch waits for claims that are put back, 3 expiry of a claim, 4 and
 * following the claims' texts, in the order of KEYS.
 * Reply: the epoch key's value; indexes (from 1) of the claims whose response somebody waits for; indexes of the claims that belong to
 * another replica.
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
 * Changes a claim that is the holder's own, or nobody's.
 *
 * KEYS: 1 claim, 2 wanted (exists while somebody waits for the response), 3 epoch key.
 * ARGV: 1 holder, 2 the new claim's text, 3 its expiry, 4 the age of its arrival where the call is left, else ''.
 * Reply: 1 when somebody waits for the response, else 0; 1 when the claim belongs to another replica, else 0; the epoch key's value or ''.
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
 * Gives up a claim whose text is still the same. KEYS: 1 claim. ARGV: 1 its text. Reply: 1 when it was given up, else 0.
 */
export const releaseScript = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`;

/**
 * Offers what is left of a call without a key to its repeats: the call itself, which goes on or whose response is kept, or its
 * position. KEYS: 1 the list of the equal calls that were left, oldest first. ARGV: 1 name of the call, or '' for its position, 2 the
 * age of its arrival, 3 maximum length of the list, 4 its expiry.
 */
export const offerScript = `${clock}
local entry = 'call ' .. ARGV[1]
if ARGV[1] == '' then entry = string.format('place %.0f %.0f', now - tonumber(ARGV[2]), now) end
redis.call('RPUSH', KEYS[1], entry)
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[3]), -1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1`;

/**
 * Takes the oldest of what is left of equal calls; nobody else gets it. Marks its response as wanted, so that its replica hands it over.
 * KEYS: 1 as above. ARGV: 1 a position is void this long after it was left, 2 name of the `wanted` key without that of the call: a key
 * that is not in KEYS, which a Cluster allows because both have the hash tag `{repeats}`, 3 its expiry.
 * Reply: \`call\` and the call's name, or \`place\` and the age of the arrival, or nothing.
 */
export const takeScript = `${clock}
while true do
  local entry = redis.call('LPOP', KEYS[1])
  if not entry then return {} end
  local name = string.match(entry, '^call (%S+)$')
  if name then
    redis.call('SET', ARGV[2] .. name, '1', 'PX', ARGV[3])
    return {'call', name}
  end
  local arrival, left = string.match(entry, '^place (%S+) (%S+)$')
  if left and now - tonumber(left) <= tonumber(ARGV[1]) then
    return {'place', string.format('%.0f', now - tonumber(arrival))}
  end
end`;

/**
 * Counts what is kept of a call, and evicts the oldest responses beyond the bound: first of the workspace, then of all. The entries of
 * expired responses are removed, up to 1,000 in each run.
 *
 * KEYS: 1 index of all responses by expiry, 2 bytes by owner. `<index>:<owner>` is the index of one workspace: a key that is not in KEYS,
 * which a Cluster allows because both have the hash tag `{repeats}`.
 * ARGV: 1 owner (a workspace), 2 name of the call, 3 bytes of the response, 4 expiry, 5 maximum of bytes of an owner, 6 of all.
 * Reply: names of the evicted responses, which the replica deletes.
 */
export const indexScript = `${clock}
local evicted = {}
local function drop(member, isEvicted)
  local owner, name, size = string.match(member, '^(%S+) (%S+) (%d+)$')
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZREM', KEYS[1] .. ':' .. owner, member)
  for _, field in ipairs({'all', owner}) do
    if redis.call('HINCRBY', KEYS[2], field, -size) <= 0 then redis.call('HDEL', KEYS[2], field) end
  end
  if isEvicted then evicted[#evicted + 1] = name end
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
return evicted`;
