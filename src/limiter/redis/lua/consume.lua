--[[
Takes slots under a ceiling, one after the other, in the sliding log of the minute and the fixed window of the day. A refusal
writes nothing but the sweep of expired slots. Mirror of `takeSlot` in ceiling.policy.ts; the day is counted as the stock script of
rate-limiter-flexible counts it, in the same key.

Guarantees: at most `limit` sends in every window, for any interleaving; idempotent by id; every key expires.

KEYS  1 sends (sorted set: id by send time)  2 calls of the day (number)
ARGV  1 per minute ('' = none)  2 per day ('' = none)  3 window ms  4 day s  5 now ('' = TIME)
      6... for each call: id, latest time at which the call may leave, in ms after now ('' = 0)
Reply for each call: taken | minute | day, sends in the window, ms until the oldest slot is free (after a refusal: until the
      next one is), calls that are left of the day ('' = there is no daily ceiling)
]]
local sends, day = KEYS[1], KEYS[2]
local perMinute, perDay = tonumber(ARGV[1]), tonumber(ARGV[2])
local windowMs, dayS, now = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]) or serverMs()
local function timeAt(index) return tonumber(redis.call('ZRANGE', sends, index, index, 'WITHSCORES')[2]) end
local function freeIn(index) return text(math.max(0, timeAt(index) + windowMs - now)) end

-- A slot may be written ahead of the clock; the next one is not written before it. What leaves the window goes by the clock.
local taken, last, written = 0, now, false
if perMinute then
  redis.call('ZREMRANGEBYSCORE', sends, '-inf', text(now - windowMs))
  taken = redis.call('ZCARD', sends)
  if taken > 0 then last = timeAt(-1) end
end
-- Text that is no number is somebody else's.
local counted = perDay and tonumber(redis.call('GET', day))
local ofDay = counted or 0

-- When the next slot is free again, which all calls but a first one and a repeated one leave as it is.
local oldest

local function take(id, at)
  local isFull = perMinute and taken >= perMinute
  local isOver = isFull or (perDay and ofDay >= perDay)
  -- The replica asks again because the first reply was lost. The call leaves after this reply, so its slot counts from now on.
  if isOver and not (perMinute and redis.call('ZSCORE', sends, id)) then
    if isFull then return 'minute', taken, freeIn(taken - perMinute) end
    return 'day', taken, tostring(math.max(1, redis.call('PTTL', day)))
  end
  local isNew = true
  if perMinute then
    isNew = redis.call('ZADD', sends, text(at), id) == 1
    last, written = at, true
    if isNew then taken = taken + 1 end
    if taken == 1 or not isNew then oldest = nil end
    oldest = oldest or freeIn(0)
  end
  if perDay and isNew then
    if not counted then redis.call('SET', day, 0, 'EX', dayS) end
    counted = true
    ofDay = redis.call('INCRBY', day, 1)
    if redis.call('TTL', day) < 0 then redis.call('EXPIRE', day, dayS) end
  end
  return 'taken', taken, oldest or '0'
end

local reply = {}
for i = 6, #ARGV - 1, 2 do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = take(ARGV[i], math.max(now + (tonumber(ARGV[i + 1]) or 0), last))
  reply[n + 4] = perDay and math.max(0, perDay - ofDay) or ''
end
if written then redis.call('PEXPIRE', sends, text(math.ceil(last - now + windowMs + 1000))) end
return reply
