-- The granted call took a slot of a ceiling that is nearly used. Mirror of `charged` in scheduler.policy.ts.
-- Guarantees: from now on the lane has at most as many grants outstanding as slots are left, and sleeps when none is;
-- without a number of slots the lane's grants are not counted any more.
-- Event { lease, slots (absent = the ceiling is not nearly used), nextSlotMs }
-- Reply ["noted"] | ["unknown_lease"]
function checks.charge(event)
  identifier(event.lease, 'lease')
  event.slots = optional(event.slots, 'slots')
  event.nextSlotMs = event.slots and number(event.nextSlotMs, 'nextSlotMs')
end

function events.charge(event, now)
  local lease = leaseOf(event.lease)
  if lease then
    local lane = laneOf(lease.lane)
    noteTold(lease)
    confirm(lane, lease)
    lane.slots = event.slots
    if event.slots and event.slots <= 0 then
      sleep(lane, 'ceiling_minute', now + event.nextSlotMs)
    else
      refreshReadiness(lane)
    end
  end
  pump(now)
  return lease and '["noted"]' or '["unknown_lease"]'
end
