-- The granted call took a slot of a ceiling that is nearly used. Mirror of `charged` in settle.policy.ts.
-- Guarantees: from now on the lane has at most as many outstanding grants as slots are left, and sleeps when none is left; an
-- event without a number of slots ends that. If the slots are of other limits than the lane's (a replica has not read the new
-- configuration yet), they limit the lane for a moment only.
-- Event { lease, slots (absent = the ceiling is not nearly used), nextSlotMs, ceilingTag (absent = that of the lane) }
-- Reply ["noted"] | ["unknown_lease"]
do
  -- @constant maxOtherLimitsMs

  function checks.charge(event)
    identifier(event.lease, 'lease')
    event.slots = optional(event.slots, 'slots')
    event.nextSlotMs = event.slots and number(event.nextSlotMs, 'nextSlotMs')
    event.ceilingTag = event.ceilingTag and identifier(event.ceilingTag, 'ceilingTag')
  end

  function events.charge(event, now)
    local lease = leaseOf(event.lease)
    if lease then
      local lane = laneOf(lease.lane)
      noteNamed(lease)
      confirm(lane, lease)
      lane.slots = event.slots
      local isOther = event.ceilingTag and event.ceilingTag ~= lane.ceilingTag
      if isOther and event.slots then lane.slots = math.max(1, event.slots) end
      if event.slots and event.slots <= 0 then
        local heldMs = isOther and math.min(event.nextSlotMs, maxOtherLimitsMs) or event.nextSlotMs
        sleep(lane, 'ceiling_minute', now + heldMs)
      else
        refreshReadiness(lane)
      end
    end
    pump(now)
    return lease and '["noted"]' or '["unknown_lease"]'
  end
end
