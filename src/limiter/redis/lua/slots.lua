--[[
The sends of a ceiling's window and the calls of its day, in one read; writes nothing.

KEYS  1 sends  2 calls of the day
ARGV  1 window ms  2 now ('' = TIME)  3 how many sends the reply names at most
Reply { sends in the window, calls of the day, ms until they are counted anew (below 0: none was counted), ms ago of the sends,
      ascending by time: of each, or where they are too many of every second, third … and of the last }
]]
local sends, day = KEYS[1], KEYS[2]
local windowMs, now, most = tonumber(ARGV[1]), tonumber(ARGV[2]) or serverMs(), tonumber(ARGV[3])
local expired = redis.call('ZCOUNT', sends, '-inf', text(now - windowMs))
local live = redis.call('ZCARD', sends) - expired
local every = math.max(1, math.ceil(live / most))
local reply = { live, tonumber(redis.call('GET', day)) or 0, redis.call('PTTL', day) }
local all = every == 1 and redis.call('ZRANGE', sends, expired, -1, 'WITHSCORES')
for n = every, live + every - 1, every do
  local at = math.min(n, live) - 1
  local score = all and all[2 * at + 2] or redis.call('ZRANGE', sends, expired + at, expired + at, 'WITHSCORES')[2]
  reply[#reply + 1] = text(now - score)
end
return reply
