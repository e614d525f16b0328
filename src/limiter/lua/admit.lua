--[[
Enters a ticket into its lane, or refuses it at once. Mirror of `admit` in scheduler.policy.ts.

Guarantees: idempotent by ticket (a ticket that is known is told where it stands, with its lease if it has one); a
refusal enters nothing and leaves only what the pump and the settings do; a ticket with an order is never refused. Such a
ticket was admitted before, by this script or by its replica alone: there are at most `max queued` of a lane per replica,
each with a socket. The order that a repeated attempt brings is no admission; its replica judges that reply itself.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 ticket  4 lane  5 weight  6 max in flight ('' = unlimited)  7 per minute ('' = no
      ceiling)  8 ceiling  9 max queued  10 urgency  11 call class  12 costs  13 document ('' = the costs are known)
      14 max wait ms  15 lease ms  16 position: 'kept' and an order, or 'arrival' and a time ('' = now)
      17 stated meters  18 learn (0/1)  19 probe  20 now ('' = TIME)
Reply granted {order, lease, expires at} | queued {forecast ms, ahead, order, held by} | queue_full, wait_too_long {retry in ms,
      held by, ahead}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica')
local ticketId, laneKey = identifier(ARGV[3], 'ticket'), identifier(ARGV[4], 'lane')
local laneSetting = { weight = number(ARGV[5], 'weight'), maxInFlight = optional(ARGV[6], 'maxInFlight') or false,
  perMinute = optional(ARGV[7], 'perMinute') or false, ceiling = identifier(ARGV[8], 'ceiling') }
local maxQueued, urgency = number(ARGV[9], 'maxQueued'), number(ARGV[10], 'urgency')
local callClass, costs = identifier(ARGV[11], 'callClass'), costList(ARGV[12], 'costs')
local document = ARGV[13] ~= '' and identifier(ARGV[13], 'document')
local maxWaitMs, leaseMs = number(ARGV[14], 'maxWaitMs'), number(ARGV[15], 'leaseMs')
local positionKind, positionValue = string.match(ARGV[16], '^(%a+) ?(.*)$')
local position, meters = optional(positionValue, 'position'), meterSettings(ARGV[17])
local learn, probe, now = ARGV[18] == '1', number(ARGV[19], 'probe'), timeOf(ARGV[20])
if laneSetting.weight <= 0 then invalid('weight') end
if leaseMs > 3600000 then invalid('leaseMs') end
if positionKind ~= 'arrival' and (positionKind ~= 'kept' or not position) then invalid('position') end
-- An arrival that is claimed to be longer ago than this is taken for this long ago. Milliseconds.
local maxArrivalAgoMs = 10000
-- One that is claimed to be later than now is taken for this much later at most. Milliseconds.
local maxArrivalAheadMs = 50
-- @include scheduler

local function standing(ticket)
  if ticket.lease then
    return 'granted', { text(ticket.order), ticket.lease, text(leaseOf(ticket.lease).expiresAt) }
  end
  local waitMs, ahead, heldBy = forecastOf(ticket, now)
  return 'queued', { text(waitMs), text(ahead), text(ticket.order), heldBy }
end

local function orderOf()
  if positionKind == 'kept' then return position end
  local at = math.max(0, math.min(now + maxArrivalAheadMs, math.max(position or now, now - maxArrivalAgoMs)))
  return urgency * orderUnit + math.floor(at * sequencePerMs)
end

local function refusal(order)
  if positionKind == 'kept' then return nil end
  local lane = laneOf(laneKey)
  local ahead = lane and rankOf(laneKey, order, ticketId) or 0
  local place = { key = laneKey, costs = costs, weight = laneSetting.weight, maxInFlight = laneSetting.maxInFlight,
    perMinute = laneSetting.perMinute, ahead = ahead }
  local waitMs, heldBy = forecastAt(lane, place, now)
  local waiting = lane and lane.waiting or 0
  if waiting >= maxQueued and (waiting > 0 or waitMs > 0) then return 'queue_full', { text(waitMs), 'queue', text(ahead) } end
  if waitMs <= maxWaitMs then return nil end
  return 'wait_too_long', { text(waitMs), heldBy, text(ahead) }
end

local function enter(order)
  redis.call('ZADD', replicasKey, text(now), caller)
  local lane = laneFor(laneKey, laneSetting)
  local ticket = { id = ticketId, lane = laneKey, replica = caller, order = order, callClass = callClass,
    costs = costs, document = document, leaseMs = leaseMs, lease = false }
  keep('t', ticketId, ticket)
  enqueue(lane, ticket)
  pump(now)
  return standing(ticket)
end

if not openBucket() then createBucket(probe, now) end
now = notBefore(now)
if ticketOf(ticketId) then redis.call('ZADD', replicasKey, text(now), caller) end
applySettings({ meters = meters, learn = learn, probe = probe }, now)
local knownLane = laneOf(laneKey)
if knownLane then applyLaneSetting(knownLane, laneSetting) end
pump(now)
costs = takeable(knownCosts(costs, document))
local known, order = ticketOf(ticketId), orderOf()
local code, own
if known then code, own = standing(known) else code, own = refusal(order) end
if not code then code, own = enter(order) end
save(now)
return replyWith(code, own, tellGrants(ticketId), now)
