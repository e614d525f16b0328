--[[
Enters a ticket into its lane, or refuses it at once. Mirror of `admit` in scheduler.policy.ts.

Guarantees: idempotent by ticket (a ticket that is known is told where it stands, with its lease if it has one); a
refusal enters nothing and leaves only what the pump and the settings do; a ticket with an order is never refused. Such a
ticket was admitted before, by this script or by its replica alone: there are at most `max queued` of a lane per replica,
each with a socket. The order that a repeated attempt brings is no admission; its replica judges that reply itself.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 ticket  4 lane  5 weight  6 max in flight ('' = unlimited)  7 max queued  8 urgency
      9 call class  10 costs  11 max wait ms  12 lease ms  13 order ('' = at the end)  14 stated meters
      15 learn (0/1)  16 probe  17 now ('' = TIME)
Reply granted {order, lease, expires at} | queued {forecast ms, ahead, order} | queue_full, wait_too_long,
      day_quota_exhausted {retry in ms}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica')
local ticketId, laneKey = identifier(ARGV[3], 'ticket'), identifier(ARGV[4], 'lane')
local weight, maxInFlight = number(ARGV[5], 'weight'), optional(ARGV[6], 'maxInFlight') or false
local maxQueued, urgency = number(ARGV[7], 'maxQueued'), number(ARGV[8], 'urgency')
local callClass, costs = identifier(ARGV[9], 'callClass'), costList(ARGV[10], 'costs')
local maxWaitMs, leaseMs = number(ARGV[11], 'maxWaitMs'), number(ARGV[12], 'leaseMs')
local givenOrder, meters = optional(ARGV[13], 'order'), meterSettings(ARGV[14])
local learn, probe, now = ARGV[15] == '1', number(ARGV[16], 'probe'), timeOf(ARGV[17])
if weight <= 0 then invalid('weight') end
if leaseMs > 3600000 then invalid('leaseMs') end
-- @include scheduler

local function standing(ticket)
  if ticket.lease then
    return 'granted', { text(ticket.order), ticket.lease, text(leaseOf(ticket.lease).expiresAt) }
  end
  local waitMs, ahead = forecastOf(ticket, now)
  return 'queued', { text(waitMs), text(ahead), text(ticket.order) }
end

local function refusal()
  if givenOrder then return nil end
  local lane = laneOf(laneKey)
  local ahead = lane and rankOf(laneKey, urgency * orderUnit + bucket.sequence + 1, '') or 0
  local place = { key = laneKey, costs = costs, weight = weight, maxInFlight = maxInFlight, ahead = ahead }
  local waitMs, day = forecastAt(lane, place, now)
  local waiting = lane and lane.waiting or 0
  if waiting >= maxQueued and (waiting > 0 or waitMs > 0) then return 'queue_full', { text(waitMs) } end
  if waitMs <= maxWaitMs then return nil end
  return day and 'day_quota_exhausted' or 'wait_too_long', { text(waitMs) }
end

local function placeAtEnd()
  if givenOrder then
    bucket.sequence = math.max(bucket.sequence, givenOrder % orderUnit)
    return givenOrder
  end
  bucket.sequence = math.max(bucket.sequence + 1, math.floor(now * sequencePerMs))
  return urgency * orderUnit + bucket.sequence
end

local function enter()
  redis.call('ZADD', replicasKey, text(now), caller)
  local lane = laneFor(laneKey, weight, maxInFlight)
  local ticket = { id = ticketId, lane = laneKey, replica = caller, order = placeAtEnd(), callClass = callClass,
    costs = costs, leaseMs = leaseMs, lease = false }
  keep('t', ticketId, ticket)
  enqueue(lane, ticket)
  pump(now)
  return standing(ticket)
end

if not openBucket() then createBucket(now) end
now = notBefore(now)
if ticketOf(ticketId) then redis.call('ZADD', replicasKey, text(now), caller) end
applySettings({ meters = meters, learn = learn, probe = probe }, now)
pump(now)
costs = takeable(costs)
local known = ticketOf(ticketId)
local code, own
if known then code, own = standing(known) else code, own = refusal() end
if not code then code, own = enter() end
save(now)
return replyWith(code, own, tellGrants(ticketId), now)
