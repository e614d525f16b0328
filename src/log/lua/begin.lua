--[[
Begins a life of the log from a copy, if the life that it replaces is still the one that the caller has seen, and has fewer entries
than the copy. Its head lives an hour, as long as nothing is appended. Safe to run twice.

KEYS  1 head  2 log
ARGV  1 life that is replaced ('' = there is none)  2 new life  3 sequence, 4 mark, 5 time ('' = the server's), 6 term of the copy
      7 its snapshot ('' = the life begins with nothing)  8 '1' = what is replaced cannot be read: also if it is longer
Reply 'begun' | 'other'
]]
local head = redis.pcall('HMGET', KEYS[1], 'life', 'sequence', 'term')
local life, length, term = head[1] or '', tonumber(head[2] or nil) or 0, tonumber(head[3] or nil) or 0
if life == ARGV[2] then return 'begun' end
if life ~= '' and (life ~= ARGV[1] or (ARGV[8] ~= '1' and length >= tonumber(ARGV[3]))) then return 'other' end
local now = text(serverMs())
local at = ARGV[5] == '' and now or ARGV[5]
term = math.max(tonumber(ARGV[6]), term) + 1
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'life', ARGV[2], 'sequence', ARGV[3], 'mark', ARGV[4], 'term', term, 'at', at, 'clock', now,
  'base', ARGV[3], 'baseMark', ARGV[4], 'bytes', 0, 'termAt', at, 'born', now, 'began', ARGV[3], 'renewed', now,
  'saved', ARGV[3], 'savedMark', ARGV[4], 'savedAt', at, 'savedTerm', term, 'snapshot', ARGV[7], 'savedBytes', 0, 'saving', 0,
  'server', serverId() or '')
redis.call('PEXPIRE', KEYS[1], 3600000)
return 'begun'
