-- Enters a ticket into its lane, or refuses it at once. Mirror of `admit` in admit.policy.ts.
-- Guarantees: idempotent by ticket (the reply for a known ticket has its position, and its lease if it has one); a
-- refusal enters nothing, and changes only what the pump and the settings change; a ticket with an order is never refused. Such
-- a ticket was admitted before, by this event or by its replica alone: each replica has at most `maxQueued` of a lane, each
-- with a socket. A repeated attempt also brings an order, although it was not admitted: its replica judges the reply itself.
-- Event { ticket, lane, weight, maxInFlight (absent = unlimited), perMinute (absent = no ceiling), ceilingTag, maxQueued,
--   urgency, callClass, costs: [[meter, units]], document (absent = the costs are known), maxWaitMs, leaseMs, order or
--   arrivedAt (neither = now), setting: { meters: [{ meter, limit, windowMs }], learn, probe } }
-- Reply ["granted", order, lease, expires at] | ["queued", forecast ms, ahead, order, held by] |
--   ["queue_full" or "wait_too_long", retry in ms, held by, ahead]
do
  -- @constant maxArrivalAgoMs maxArrivalAheadMs maxLeaseMs

  local function grantedWith(lease, ticket)
    reportedByReply[lease.token] = true
    return '["granted",' .. text(ticket.order) .. ',"' .. lease.token .. '",' .. text(lease.expiresAt) .. ']'
  end

  local function replyFor(ticket, asked, now)
    if ticket.lease then return grantedWith(leaseOf(ticket.lease), ticket) end
    local waitMs, ahead, heldBy = forecasts.of(ticket, now, asked.maxWaitMs)
    return '["queued",' .. text(waitMs) .. ',' .. text(ahead) .. ',' .. text(ticket.order) .. ',"' .. heldBy .. '"]'
  end

  local function orderOf(asked, now)
    if asked.order then return asked.order end
    local at = math.max(0, math.min(now + maxArrivalAheadMs, math.max(asked.arrivedAt or now, now - maxArrivalAgoMs)))
    return asked.urgency * orderUnit + math.floor(at * sequencePerMs)
  end

  local function refusal(asked, order, now)
    if asked.order then return nil end
    local lane = asked.inLane
    local waiting = lane and lane.waiting or 0
    local isFull = waiting >= asked.maxQueued
    -- A full line lets nobody in before its head has left, however urgent the call is that comes again.
    local leaveFirst = isFull and math.min(waiting, 1) or 0
    local ahead = math.max(leaveFirst, waiting > 0 and rankOf(asked.lane, order, asked.ticket) or 0)
    local position = { key = asked.lane, costs = asked.costs, weight = asked.weight, maxInFlight = asked.maxInFlight,
      perMinute = asked.perMinute, ahead = ahead }
    local waitMs, heldBy = forecasts.at(lane, position, now, not isFull and asked.maxWaitMs or nil)
    if isFull and (waiting > 0 or waitMs > 0) then
      return '["queue_full",' .. text(waitMs) .. ',"queue",' .. text(ahead) .. ']'
    end
    if waitMs <= asked.maxWaitMs then return nil end
    return '["wait_too_long",' .. text(waitMs) .. ',"' .. heldBy .. '",' .. text(ahead) .. ']'
  end

  -- `asked.inLane`: its lane, nil = it is new.
  local function enter(asked, order, now)
    noteReplica(now)
    local lane = asked.inLane or createLane(asked.lane, asked)
    local ticket = { asked.ticket, asked.lane, ownReplica, order, asked.callClass, asked.costs, asked.document, asked.leaseMs,
      false }
    keep('t', asked.ticket, ticket)
    return lane, ticket
  end

  local function enterLine(asked, order, now)
    local lane, ticket = enter(asked, order, now)
    enqueue(lane, ticket)
    pump(now)
    return replyFor(ticket, asked, now)
  end

  function checks.admit(event)
    laneSetting(event)
    identifier(event.ticket, 'ticket')
    identifier(event.callClass, 'callClass')
    costList(event.costs, 'costs')
    event.document = event.document and identifier(event.document, 'document') or false
    event.maxQueued, event.urgency = number(event.maxQueued, 'maxQueued'), number(event.urgency, 'urgency')
    event.maxWaitMs, event.leaseMs = number(event.maxWaitMs, 'maxWaitMs'), number(event.leaseMs, 'leaseMs')
    if event.leaseMs > maxLeaseMs then invalid('leaseMs') end
    event.order, event.arrivedAt = optional(event.order, 'position'), optional(event.arrivedAt, 'position')
    list(event.setting, 'setting')
  end

  function events.admit(event, now)
    local ticket = ticketOf(event.ticket)
    if ticket then noteReplica(now) end
    applySettingsOnce(event.setting, now)
    local lane = laneOf(event.lane)
    if lane then applyLaneSetting(lane, event) end
    pump(now)
    -- A pump enters no ticket, but it forgets those of replicas that are gone.
    if ticket then ticket = ticketOf(event.ticket) end
    if ticket then return replyFor(ticket, event, now) end
    event.costs, event.inLane = cappedCosts(knownCosts(event.costs, event.document)), lane
    local order = orderOf(event, now)
    if mayGoAtOnce(lane, event, now) then
      lane, ticket = enter(event, order, now)
      return grantedWith(grantAtOnce(lane, ticket, now), ticket)
    end
    return refusal(event, order, now) or enterLine(event, order, now)
  end
end
