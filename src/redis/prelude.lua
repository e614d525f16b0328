-- What stands before each script.

-- A number that reads back as itself.
local function text(value) return string.format('%.17g', value) end

-- Milliseconds since 1970, by the server's clock.
local function serverMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

-- Its run id; nil where the user of Redis may not ask.
local function serverId()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or nil
end
