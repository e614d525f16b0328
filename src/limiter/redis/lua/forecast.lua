-- Expected wait of a ticket that already waits. Mirror of `forecast` in forecast.policy.ts.
-- Guarantees: grants nothing and moves no ticket; it only drains the meters that it reads up to now.
-- Event { ticket }
-- Reply ["waiting", forecast ms, ahead, held by] | ["not_waiting"]
function checks.forecast(event) identifier(event.ticket, 'ticket') end

function events.forecast(event, now)
  local waitMs, ahead, heldBy = forecasts.of(ticketOf(event.ticket), now)
  if not waitMs then return '["not_waiting"]' end
  return '["waiting",' .. text(waitMs) .. ',' .. text(ahead) .. ',"' .. heldBy .. '"]'
end
