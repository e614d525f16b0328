-- What every script answers, and what other replicas are told. All numbers go as text: Redis cuts fractions off.
-- Reply: { code, own words, now, ms until the next pump ('' = none by itself), ms closed, birth of the bucket, grants,
--   '1' = the caller is expected to pump then }
-- Message to a replica: `g <bucket> <birth>` and one grant per line, or `c <bucket> <ms closed>`.
-- Grant: `<ticket> <lane> <lease> <expires at>`; times are on the store's clock.
local function text(value) return string.format('%.17g', value) end

local function grantText(lease)
  return lease.ticket .. ' ' .. lease.lane .. ' ' .. lease.token .. ' ' .. text(lease.expiresAt)
end

-- Sends the grants of other replicas and returns those of the caller, but for the ticket told by the reply itself.
local function tellGrants(ownTicket)
  local own, messages = {}, {}
  for _, lease in ipairs(granted) do
    if lease.replica ~= caller then
      local head = messages[lease.replica] or 'g ' .. bucketName .. ' ' .. text(bucket.born)
      messages[lease.replica] = head .. '\n' .. grantText(lease)
    elseif lease.ticket ~= ownTicket then
      own[#own + 1] = grantText(lease)
    end
  end
  for replica, message in pairs(messages) do redis.call('PUBLISH', replicaChannel .. replica, message) end
  return own
end

-- The bucket has closed: whoever has tickets waiting decides whether they can still make it.
local function tellClosed(now)
  for _, replica in ipairs(redis.call('ZREVRANGEBYSCORE', replicasKey, '+inf', '-inf', 'LIMIT', 0, 64)) do
    if replica ~= caller and redis.call('HEXISTS', recordsKey, 'w:' .. replica) == 1 then
      redis.call('PUBLISH', replicaChannel .. replica, 'c ' .. bucketName .. ' ' .. text(closedMs(now)))
    end
  end
end

local function replyWith(code, own, grants, now)
  return { code, own, text(now), nextAt and text(nextAt - now) or '', text(closedMs(now)), text(bucket.born), grants,
    promised(now) }
end

-- The bucket does not exist: there is nothing to end, and nothing is written.
local function replyUnknown(code, now) return { code, {}, text(now), '', '0', '', {}, '' } end
