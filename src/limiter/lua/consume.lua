--[[
Takes a place under a ceiling: the sliding log per minute and the fixed window per day, or refuses and writes nothing
but the sweep. Mirror of `takePlace` in ceiling.policy.ts; the day is counted as rate-limiter-flexible's stock script
counts it, in the same key.

Guarantees: at most `limit` sends in every window, for any interleaving; idempotent by id; every key expires.

KEYS  1 sends (sorted set: id by send time)  2 calls of the day (number)
ARGV  1 id  2 per minute ('' = none)  3 per day ('' = none)  4 window ms  5 day s  6 now ('' = TIME)
      7 ms after now that the call may leave at the latest ('' = 0)
Reply { taken | minute | day, sends in the window, ms until the oldest place frees or, refused, until the next one }
]]
local sends, day = KEYS[1], KEYS[2]
local id, perMinute, perDay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local windowMs, dayS, now = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lateMs = tonumber(ARGV[7]) or 0
local function text(value) return string.format('%.17g', value) end
if not windowMs or not dayS then error('sluice: invalid window') end
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local taken, oldest, at = 0, false, now + lateMs
local function write()
  redis.call('ZADD', sends, text(at), id)
  redis.call('PEXPIRE', sends, text(math.ceil(at - now + windowMs + 1000)))
end
local function count()
  taken = redis.call('ZCARD', sends)
  oldest = tonumber(redis.call('ZRANGE', sends, 0, 0, 'WITHSCORES')[2])
end
local function nextMs() return text(oldest and math.max(0, oldest + windowMs - now) or 0) end
if perMinute then
  local last = tonumber(redis.call('ZRANGE', sends, -1, -1, 'WITHSCORES')[2])
  -- Only what is written keeps the order: a place may be ahead of the clock, what leaves the window must not be.
  at = math.max(at, last or 0)
  redis.call('ZREMRANGEBYSCORE', sends, '-inf', text(now - windowMs))
  count()
  if redis.call('ZSCORE', sends, id) then
    -- Asked again because the reply was lost: the call leaves after this one, so it counts from now on.
    write()
    count()
    return { 'taken', taken, nextMs() }
  end
  if taken >= perMinute then
    local freed = tonumber(redis.call('ZRANGE', sends, taken - perMinute, taken - perMinute, 'WITHSCORES')[2])
    return { 'minute', taken, text(math.max(0, freed + windowMs - now)) }
  end
end
if perDay and tonumber(redis.call('GET', day) or '0') >= perDay then
  return { 'day', taken, tostring(math.max(1, redis.call('PTTL', day))) }
end
if perMinute then
  write()
  count()
end
if perDay then
  redis.call('SET', day, 0, 'EX', dayS, 'NX')
  redis.call('INCRBY', day, 1)
  if redis.call('TTL', day) < 0 then redis.call('EXPIRE', day, dayS) end
end
return { 'taken', taken, nextMs() }
