--[[
State and forecast of a ceiling in one read; writes nothing. Mirror of `placeInMs` in ceiling.policy.ts.

KEYS  1 sends
ARGV  1 per minute  2 window ms  3 now ('' = TIME)  4... positions (1 = the next call)
Reply { sends in the window, ms until the oldest place frees, ms until each position finds a place ... }
]]
local sends, perMinute, windowMs, now = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function text(value) return string.format('%.17g', value) end
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local function sentAt(index) return tonumber(redis.call('ZRANGE', sends, index, index, 'WITHSCORES')[2]) end
local expired = redis.call('ZCOUNT', sends, '-inf', text(now - windowMs))
local live = redis.call('ZCARD', sends) - expired
local oldest = sentAt(expired)
local reply = { live, text(oldest and math.max(0, oldest + windowMs - now) or 0) }
for i = 4, #ARGV do
  local behind = live + tonumber(ARGV[i]) - 1 - perMinute
  if behind < 0 then
    reply[#reply + 1] = '0'
  else
    local rounds = math.max(0, math.ceil((behind - live + 1) / perMinute))
    local first = behind - rounds * perMinute
    local freed = first >= 0 and sentAt(expired + first)
    reply[#reply + 1] = text((freed and math.max(0, freed + windowMs - now) or 0) + rounds * windowMs)
  end
end
return reply
