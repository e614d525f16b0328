--[[
State and forecast of a ceiling in one read; writes nothing. Mirror of `slotInMs` in ceiling.policy.ts.

KEYS  1 sends  2 calls of the day
ARGV  1 per minute ('' = none)  2 window ms  3 now ('' = TIME)  4... positions (1 = the next call)
Reply { sends in the window, ms until the oldest slot frees, calls of the day, ms until they are counted anew (below 0:
      none was counted), ms until each position finds a slot ... }
]]
local sends, day = KEYS[1], KEYS[2]
local perMinute, windowMs, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function text(value) return string.format('%.17g', value) end
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local function sentAt(index) return tonumber(redis.call('ZRANGE', sends, index, index, 'WITHSCORES')[2]) end
local expired = redis.call('ZCOUNT', sends, '-inf', text(now - windowMs))
local live = redis.call('ZCARD', sends) - expired
local oldest = sentAt(expired)
local reply = { live, text(oldest and math.max(0, oldest + windowMs - now) or 0), redis.call('GET', day) or '0',
  tostring(redis.call('PTTL', day)) }
for i = 4, #ARGV do
  local behind = perMinute and live + tonumber(ARGV[i]) - 1 - perMinute
  if not behind or behind < 0 then
    reply[#reply + 1] = '0'
  else
    local rounds = math.max(0, math.ceil((behind - live + 1) / perMinute))
    local first = behind - rounds * perMinute
    local freed = first >= 0 and sentAt(expired + first)
    reply[#reply + 1] = text((freed and math.max(0, freed + windowMs - now) or 0) + rounds * windowMs)
  end
end
return reply
