-- Writes or deletes an entry of a shared map, unless it is somebody else's. Safe to run twice.
-- KEYS: 1 the entry: its owner, a blank, the sealed value
-- ARGV: 1 the writer, 2 whose entry may be replaced, too ('' nobody's, '*' anybody's), 3 the new entry ('' deletes it),
--   4 its life in milliseconds, 5 channel ('' none), 6 what is published there when it was written
-- Reply: nothing when it was written, else the entry that stays and what is left of its life
local writer, over, life = ARGV[1], ARGV[2], tonumber(ARGV[4])
local found = redis.call('GET', KEYS[1])
local owner = found and string.match(found, '^(%S+) ')
if found and over ~= '*' and owner ~= writer and owner ~= over then
  return {found, redis.call('PTTL', KEYS[1])}
end
if ARGV[3] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[3], 'PX', life) end
if ARGV[5] ~= '' then redis.call('PUBLISH', ARGV[5], ARGV[6]) end
return {}
