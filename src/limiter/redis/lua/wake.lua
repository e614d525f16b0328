-- A slot of the lane's ceiling was given back by a call of another bucket. Mirror of `wakeForSlot` in settle.policy.ts.
-- Guarantees: an unknown lane changes nothing but what the pump does.
-- Event { lane }
-- Reply ["woken"] | ["unknown_bucket"]
function checks.wake(event) identifier(event.lane, 'lane') end

function events.wake(event, now)
  local lane = laneOf(event.lane)
  if lane then slotIsBack(lane, now) end
  pump(now)
  return '["woken"]'
end
