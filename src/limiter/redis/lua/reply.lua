-- The reply of every run, and the messages to other replicas. JSON is written by hand: cjson rounds numbers.
-- Message to a replica: `g <bucket> <createdAt>` and one grant per line, or `c <bucket> <ms closed>`.
-- Grant: `<ticket> <lane> <lease> <expires at>`; times are on the store's clock.

-- The same double when it is read back; 'inf' is no number of JSON, but a word that both ends know.
local function text(value)
  if value % 1 == 0 and value < 1e15 and value > -1e15 then return string.format('%d', value) end
  if value == math.huge then return '"inf"' end
  return string.format('%.17g', value)
end

local function grantText(lease)
  return lease.ticket .. ' ' .. lease.lane .. ' ' .. lease.token .. ' ' .. text(lease.expiresAt)
end

local function grantJson(lease)
  return '["' .. lease.ticket .. '","' .. lease.lane .. '","' .. lease.token .. '",' .. text(lease.expiresAt) .. ']'
end

-- Adds the grants of earlier runs that the asking replica has not named yet.
local function addUnnamed(own)
  local reported, section = {}, 'u:' .. ownReplica
  for _, lease in ipairs(granted) do reported[lease.token] = true end
  for _, member in ipairs(redis.call('ZRANGEBYLEX', orderKey, '[' .. section .. ':', '(' .. section .. ';', 'LIMIT', 0, 64)) do
    local token = string.sub(member, #section + 2)
    if not reported[token] and not reportedByReply[token] then own[#own + 1] = grantJson(leaseOf(token)) end
  end
end

-- Publishes the grants of other replicas. Returns those of the asking replica, without those that a reply to an event names.
local function reportGrants()
  local own, messages = {}, {}
  for _, lease in ipairs(granted) do
    if lease.replica ~= ownReplica then
      local head = messages[lease.replica] or 'g ' .. bucketName .. ' ' .. text(bucket.createdAt)
      messages[lease.replica] = head .. '\n' .. grantText(lease)
    elseif not reportedByReply[lease.token] then
      own[#own + 1] = grantJson(lease)
    end
  end
  for replica, message in pairs(messages) do redis.call('PUBLISH', replicaChannelPrefix .. replica, message) end
  if reportsUnnamed then addUnnamed(own) end
  return own
end

-- Tells replicas with waiting tickets that the bucket has closed: each of them checks which of its calls are too late now.
local function reportClosed(now)
  for _, replica in ipairs(redis.call('ZREVRANGEBYSCORE', replicasKey, '+inf', '-inf', 'LIMIT', 0, 64)) do
    if replica ~= ownReplica and redis.call('HEXISTS', recordsKey, 'w:' .. replica) == 1 then
      redis.call('PUBLISH', replicaChannelPrefix .. replica, 'c ' .. bucketName .. ' ' .. text(closedMs(now)))
    end
  end
end

local function replyWith(replies, grants, isPumpLeader, now)
  local leader = isPumpLeader and ',true,[' or ',false,['
  return '[' .. text(now) .. ',' .. (nextAt and text(nextAt - now) or 'null') .. ',' .. text(closedMs(now)) .. ','
    .. text(bucket.createdAt) .. leader .. table.concat(grants, ',') .. '],' .. text(unnamed) .. ',['
    .. table.concat(replies, ',') .. ']]'
end

-- The bucket does not exist: there is nothing to end, and nothing is written.
local function replyUnknown(replies, now)
  return '[' .. text(now) .. ',null,0,null,false,[],0,[' .. table.concat(replies, ',') .. ']]'
end
