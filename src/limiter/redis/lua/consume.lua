--[[
Takes slots under a ceiling, one after the other, in the sliding log of the minute and the fixed window of the day. A refusal
writes nothing but the sweep of expired slots. Mirror of `takeSlot` in ceiling.policy.ts; the day is counted as the stock script of
rate-limiter-flexible counts it, in the same key. Like `apply` it is a function of the library, and a script where there are no
functions.

Guarantees: at most `limit` sends in every window, for any interleaving; idempotent by id; every key expires.

KEYS  1 sends (sorted set: id by send time)  2 calls of the day (number)
ARGV  1 per minute ('' = none)  2 per day ('' = none)  3 window ms  4 day s  5 now ('' = TIME)
      6... for each call: id, latest time at which the call may leave, in ms after now ('' = 0)
Reply for each call: taken | minute | day, sends in the window, ms until the oldest slot is free (after a refusal: until the
      next one is), calls that are left of the day ('' = there is no daily ceiling)
]]
local consume
do
  -- What a run works on; `consume` sets it anew, because a library outlives its runs.
  local sends, day, perMinute, perDay, windowMs, dayS, now
  local taken, oldest, last, ofDay, written

  local function text(value) return string.format('%.17g', value) end

  local function timeAt(index) return tonumber(redis.call('ZRANGE', sends, index, index, 'WITHSCORES')[2]) end

  local function count()
    taken = redis.call('ZCARD', sends)
    oldest = taken > 0 and timeAt(0)
  end

  local function begin(keys, args)
    sends, day = keys[1], keys[2]
    perMinute, perDay = tonumber(args[1]), tonumber(args[2])
    windowMs, dayS, now = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
    if not windowMs or not dayS then error('sluice: invalid window') end
    if not now then
      local time = redis.call('TIME')
      now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
    end
    taken, oldest, last, ofDay, written = 0, false, now, 0, false
    if perMinute then
      redis.call('ZREMRANGEBYSCORE', sends, '-inf', text(now - windowMs))
      count()
      -- A slot may be written ahead of the clock; the next one is not written before it. What leaves the window goes by the clock.
      last = taken > 0 and timeAt(-1) or now
    end
    if perDay then ofDay = tonumber(redis.call('GET', day) or '0') end
  end

  local function nextMs() return text(oldest and math.max(0, oldest + windowMs - now) or 0) end

  local function write(id, at)
    redis.call('ZADD', sends, text(at), id)
    last, written = at, true
  end

  -- The replica asks again because the first reply was lost. The call leaves after this reply, so its slot counts from now on.
  local function takeAgain(id, at)
    write(id, at)
    count()
    return 'taken', taken, nextMs()
  end

  local function countOfDay()
    redis.call('SET', day, 0, 'EX', dayS, 'NX')
    ofDay = redis.call('INCRBY', day, 1)
    if redis.call('TTL', day) < 0 then redis.call('EXPIRE', day, dayS) end
  end

  local function take(id, at)
    local isMinuteFull, isDayFull = perMinute and taken >= perMinute, perDay and ofDay >= perDay
    if isMinuteFull or isDayFull then
      if perMinute and redis.call('ZSCORE', sends, id) then return takeAgain(id, at) end
      if isMinuteFull then
        return 'minute', taken, text(math.max(0, timeAt(taken - perMinute) + windowMs - now))
      end
      return 'day', taken, tostring(math.max(1, redis.call('PTTL', day)))
    end
    if perMinute then
      if redis.call('ZADD', sends, 'NX', text(at), id) == 0 then return takeAgain(id, at) end
      last, written, taken, oldest = at, true, taken + 1, oldest or at
    end
    if perDay then countOfDay() end
    return 'taken', taken, nextMs()
  end

  function consume(keys, args)
    begin(keys, args)
    local reply = {}
    for i = 6, #args - 1, 2 do
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = take(args[i], math.max(now + (tonumber(args[i + 1]) or 0), last))
      reply[n + 4] = perDay and math.max(0, perDay - ofDay) or ''
    end
    if written then redis.call('PEXPIRE', sends, text(math.ceil(last - now + windowMs + 1000))) end
    return reply
  end
end
