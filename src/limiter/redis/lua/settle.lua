-- Ends a lease, once, and learns from its response. Mirror of `settle` in settle.policy.ts.
-- Guarantees: a token that is not known any more (settled, expired, lost) changes nothing but what the pump does; a call
-- whose fate is unknown keeps a capped lane taken until the lease expires.
-- Event { lease, outcome: succeeded (spent: [[meter, units]], absent = as reserved), throttled (closeMs, requeue, sleepMs),
--   dropped, returned (because, sleepMs, ceilingTag: absent = that of the lane), unknown; lesson as in learn.lua, absent = none }
-- Reply ["settled"] | ["unknown_lease"]
do
  -- @constant maxOtherLimitsMs

  -- The refusal says that the call asks for more than was reserved: it waits for so much. Costs are in the order of meterNames.
  local function raiseCost(lease, lesson)
    local ticket, name, asked = ticketOf(lease.ticket), lesson.rateMeter, lesson.refusedUnits
    if not ticket or not asked or not name or name == 'cost' then return end
    local units = {}
    for _, cost in ipairs(ticket.costs) do units[cost[1]] = cost[2] end
    if asked <= (units[name] or 0) then return end
    units[name] = asked
    local costs = {}
    for _, one in ipairs(meterNames) do
      if units[one] and units[one] > 0 then costs[#costs + 1] = { one, units[one] } end
    end
    ticket.costs = costs
  end

  -- The ticket is back at its position.
  local function requeue(lane, ticket)
    ticket.lease = false
    ticket.costs = cappedCosts(knownCosts(ticket.costs, ticket.document))
    enqueue(lane, ticket)
  end

  local settlements = {}

  function settlements.succeeded(lane, lease, settlement, now)
    if settlement.spent then correct(lease, settlement.spent, now) end
    if settlement.lesson then applyLesson(lease, settlement.lesson, 0, now) else applySilence(lease, now) end
    noteService(lane, now - lease.grantedAt)
    finish(lane, lease)
    discard('t', lease.ticket)
  end

  function settlements.throttled(lane, lease, settlement, now)
    applyThrottle(lease, settlement.closeMs, settlement.lesson, now)
    finish(lane, lease)
    if settlement.closeMs > 0 and settlement.lesson then raiseCost(lease, settlement.lesson) end
    if settlement.requeue then requeue(lane, ticketOf(lease.ticket)) else discard('t', lease.ticket) end
    if settlement.sleepMs > 0 then sleep(lane, 'backoff', now + settlement.sleepMs) end
  end

  function settlements.dropped(lane, lease, _, now)
    giveLeaseUnitsBack(lease, now)
    finish(lane, lease)
    discard('t', lease.ticket)
    slotIsBack(lane, now)
  end

  function settlements.returned(lane, lease, settlement, now)
    firstCalls.recallPilot(lease)
    giveLeaseUnitsBack(lease, now)
    finish(lane, lease)
    requeue(lane, ticketOf(lease.ticket))
    local hadSlot = settlement.because == 'backoff'
    if hadSlot then slotIsBack(lane, now) else lane.slots = 1 end
    -- A slot came back after this grant: the ceiling may have refused the grant before.
    if not hadSlot and lane.slotBackAt and lease.grantedAt < lane.slotBackAt then return refreshReadiness(lane) end
    local holds = not settlement.ceilingTag or settlement.ceilingTag == lane.ceilingTag
    sleep(lane, settlement.because, now + (holds and settlement.sleepMs or math.min(settlement.sleepMs, maxOtherLimitsMs)))
  end

  function settlements.unknown(lane, lease, _, now)
    if lane.maxInFlight then
      noteNamed(lease)
      lease.stage = 'abandoned'
      local ticket = ticketOf(lease.ticket)
      expireAt(lease, now + ticket.leaseMs)
      table.insert(lane.abandoned, lease.expiresAt)
      table.sort(lane.abandoned)
    else
      finish(lane, lease)
    end
    discard('t', lease.ticket)
  end

  local outcomes = {}
  function outcomes.succeeded(event) event.spent = event.spent and costList(event.spent, 'spent') end
  function outcomes.throttled(event)
    event.closeMs, event.sleepMs = number(event.closeMs, 'closeMs'), number(event.sleepMs, 'sleepMs')
  end
  function outcomes.returned(event)
    event.sleepMs = number(event.sleepMs, 'sleepMs')
    if not sleepIndex[event.because] then invalid('because') end
    event.ceilingTag = event.ceilingTag and identifier(event.ceilingTag, 'ceilingTag')
  end
  function outcomes.dropped() end
  function outcomes.unknown() end

  function checks.settle(event)
    identifier(event.lease, 'lease')
    if not outcomes[event.outcome] then invalid('outcome') end
    outcomes[event.outcome](event)
    if event.lesson then lessonOf(event.lesson) end
  end

  function events.settle(event, now)
    local lease = leaseOf(event.lease)
    local held = lease and lease.stage ~= 'abandoned'
    if held then
      local lane = laneOf(lease.lane)
      confirm(lane, lease)
      settlements[event.outcome](lane, lease, event, now)
      if event.outcome == 'dropped' or event.outcome == 'returned' then dropProbe(lease) else endProbe(lease, now) end
      if event.outcome == 'throttled' and event.closeMs > 0 then closes = true end
    end
    pump(now)
    return held and '["settled"]' or '["unknown_lease"]'
  end
end
