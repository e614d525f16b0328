--[[
A snapshot is written: new copies begin from it. Entries before the previous one go, so that a copy which is a little behind need not
begin anew, and the previous one goes after a minute, for those who are reading it. Safe to run twice.

KEYS  1 head  2 log  3 beginning of the names of snapshots
ARGV  1 life  2 sequence, 3 mark, 4 time, 5 term of the last entry in it  6 parts  7 its bytes  8 bytes of the log when it was made
Reply 'saved' | 'other'
]]
local head = redis.call('HMGET', KEYS[1], 'life', 'saved', 'savedMark', 'base', 'bytes')
local saved, sequence = tonumber(head[2] or nil), tonumber(ARGV[2])
local snapshot = KEYS[3] .. ARGV[1] .. '.' .. ARGV[2]
if head[1] ~= ARGV[1] or not saved or saved > sequence then return 'other' end
if saved == sequence then return 'saved' end
-- A failover may have lost it.
if redis.call('HLEN', snapshot) < tonumber(ARGV[6]) then return 'other' end
redis.call('LTRIM', KEYS[2], saved - tonumber(head[4]), -1)
redis.call('HSET', KEYS[1], 'base', head[2], 'baseMark', head[3], 'saved', ARGV[2], 'savedMark', ARGV[3], 'savedAt', ARGV[4],
  'savedTerm', ARGV[5], 'parts', ARGV[6], 'savedBytes', ARGV[7], 'bytes', math.max(0, tonumber(head[5]) - tonumber(ARGV[8])), 'saving', 0)
redis.call('PEXPIRE', snapshot, 3600000)
redis.call('PEXPIRE', KEYS[3] .. ARGV[1] .. '.' .. saved, 60000)
return 'saved'
