-- A waiting ticket leaves its lane. Mirror of `cancel` in scheduler.policy.ts.
-- Guarantees: idempotent; a ticket that holds a lease is left alone, because its lease must be settled.
-- Event { ticket }
-- Reply ["cancelled"]
function checks.cancel(event) identifier(event.ticket, 'ticket') end

function events.cancel(event, now)
  local ticket = ticketOf(event.ticket)
  if ticket and not ticket.lease then
    dequeue(laneOf(ticket.lane), ticket)
    discard('t', ticket.id)
  end
  pump(now)
  return '["cancelled"]'
end
