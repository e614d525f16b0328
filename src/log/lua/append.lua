--[[
Appends one batch of a replica and brings the entries that its copy lacks; or only brings them. All or nothing, and once: an attempt
that ran before has left an entry of this replica with this batch, or a higher one, among those that the copy lacks.

The log's time goes on by differences of the server's clock: never back, and never by more than the caller's own clock allows. A term
begins where something may have been lost: another server (its run id) serves, or a replica was without Redis and may have acted alone.

KEYS  1 head  2 log
ARGV  1 life, 2 sequence, 3 mark of the caller's copy  4 replica  5 batch  6 events ('' = only read)  7 channel
      8 ms by which the time may go on at most  9 '1' = the caller may have acted alone until now  10 bytes of a log that is due for a snapshot
      11 ms that the keys live if nothing is appended any more ('' = an hour)
Reply { 'none' | 'short' | 'far' | 'fork' | 'damaged', life }
      { 'more' | 'whole', life, entries, term, '1' = this attempt has appended the last of the entries, bytes of the log if the caller is
        to make a snapshot ('' = it is not) }
]]
local hourMs, renewMs, settlingMs, savingMs, givesWayMs, maxEntries = 3600000, 60000, 1300, 30000, 10000, 100
-- Another application's key is damage; memory, a replica or a disk that takes no writes is none.
local function failed(reply, life) return string.find(reply.err, 'WRONGTYPE', 1, true) and { 'damaged', life } or reply end
local known, batch = tonumber(ARGV[2]), tonumber(ARGV[5])
local head = redis.pcall('HMGET', KEYS[1], 'life', 'mark', 'baseMark', 'server', 'sequence', 'term', 'at', 'clock', 'base',
  'bytes', 'termAt', 'born', 'began', 'renewed', 'savedBytes', 'saving')
if head.err then return failed(head, '') end
local life, mark, baseMark, server = unpack(head, 1, 4)
if not life then return { 'none', '' } end
for place = 5, 16 do
  head[place] = tonumber(head[place])
  if not head[place] then return { 'damaged', life } end
end
local sequence, term, at, before, base, bytes, termAt, born, began, renewed, savedBytes, saving = unpack(head, 5, 16)
local now = serverMs()
if known > sequence then
  -- A life that began with nothing gives way to a copy while those who have one may not have noticed it.
  local givesWay = began == 0 and now - born < givesWayMs
  return { (life == ARGV[1] or givesWay) and 'short' or 'fork', life }
end
if known < base then return { 'far', life } end
-- With the last entry of the copy, for its mark.
local missed = redis.pcall('LRANGE', KEYS[2], math.max(0, known - base - 1), known - base + maxEntries - 1)
if missed.err then return failed(missed, life) end
local last = baseMark
if known > base then last = string.match(table.remove(missed, 1) or '', '^%d+ (%x+) ') end
if #missed < math.min(sequence - known, maxEntries) then return { 'damaged', life } end
if last ~= ARGV[3] then return { 'fork', life } end
local function reply(state, appended, due) return { state, life, missed, term, appended, due } end
if known + #missed < sequence then return reply('more', '', '') end
if ARGV[6] == '' then return reply('whole', '', '') end
for _, entry in ipairs(missed) do
  local replica, other = string.match(entry, '^%S+ %S+ %S+ %S+ (%S+) (%d+) ')
  if replica == ARGV[4] and tonumber(other) >= batch then return reply('whole', '', '') end
end

at = at + math.max(0, math.min(now - before, tonumber(ARGV[8])))
local fields = {}
local runId = serverId() or server
if runId ~= server or (ARGV[9] == '1' and at - termAt > settlingMs) then
  term = term + 1
  fields = { 'server', runId, 'term', term, 'termAt', text(at) }
end
local stamp = text(at) .. ' ' .. ARGV[4] .. ' ' .. ARGV[5]
mark = string.sub(redis.sha1hex(mark .. stamp), 1, 10)
local entry = (sequence + 1) .. ' ' .. mark .. ' ' .. term .. ' ' .. stamp .. ' ' .. ARGV[6]
missed[#missed + 1] = entry
local length = redis.pcall('RPUSH', KEYS[2], entry)
if type(length) ~= 'number' then return failed(length, life) end
bytes = bytes + #entry
local due = ''
if bytes > math.max(tonumber(ARGV[10]), savedBytes) and math.abs(now - saving) > savingMs then
  due = text(bytes)
  fields[#fields + 1], fields[#fields + 2] = 'saving', text(now)
end
local keptMs = tonumber(ARGV[11])
if keptMs or length == 1 or math.abs(now - renewed) > renewMs then
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, keptMs or hourMs) end
  -- Whoever appends next uses the log again.
  fields[#fields + 1], fields[#fields + 2] = 'renewed', keptMs and '0' or text(now)
end
redis.call('HSET', KEYS[1], 'sequence', sequence + 1, 'mark', mark, 'at', text(at), 'clock', text(now), 'bytes', text(bytes), unpack(fields))
redis.call('PUBLISH', ARGV[7], entry)
return reply('whole', '1', due)
