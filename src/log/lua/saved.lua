--[[
Keeps a snapshot, from which new copies begin. Entries before the previous one go, so that a copy which is a little behind need not
begin anew. Safe to run twice.

KEYS  1 head  2 log
ARGV  1 life  2 sequence, 3 mark, 4 time, 5 term of the last entry in it  6 the snapshot  7 bytes of the log when it was made
Reply nothing
]]
local head = redis.call('HMGET', KEYS[1], 'life', 'saved', 'savedMark', 'base', 'bytes')
local saved, sequence = tonumber(head[2] or nil), tonumber(ARGV[2])
if head[1] ~= ARGV[1] or not saved or saved >= sequence then return end
redis.call('LTRIM', KEYS[2], saved - tonumber(head[4]), -1)
redis.call('HSET', KEYS[1], 'base', head[2], 'baseMark', head[3], 'saved', ARGV[2], 'savedMark', ARGV[3], 'savedAt', ARGV[4],
  'savedTerm', ARGV[5], 'snapshot', ARGV[6], 'savedBytes', #ARGV[6], 'bytes', math.max(0, tonumber(head[5]) - tonumber(ARGV[7])), 'saving', 0)
