--[[
Where a new copy begins.

KEYS  1 head
Reply { 'none' | 'damaged', life } | { 'saved', life, sequence, mark, term, time of the last entry in the snapshot, the snapshot ('' = with nothing) }
]]
local head = redis.pcall('HMGET', KEYS[1], 'life', 'saved', 'savedMark', 'savedTerm', 'savedAt', 'snapshot')
if head.err then return string.find(head.err, 'WRONGTYPE', 1, true) and { 'damaged', '' } or head end
local life, sequence, mark, term, at, snapshot = unpack(head, 1, 6)
if not life then return { 'none', '' } end
if not (tonumber(sequence) and mark and tonumber(term) and tonumber(at) and snapshot) then return { 'damaged', life } end
return { 'saved', unpack(head, 1, 6) }
