-- Configuration changed: the bucket and lanes of it go on under new settings. Mirror of `reconfigure` in
-- scheduler.policy.ts.
-- Guarantees: a bucket that Redis does not know is not created, lanes that it does not know are skipped; a lane that
-- sleeps for a ceiling which has other limits now wakes.
-- Event { setting: { meters: [{ meter, limit, windowMs }], learn, probe }, lanes: [{ lane, weight, maxInFlight (absent =
--   unlimited), perMinute (absent = no ceiling), ceilingTag }] }
-- Reply ["reconfigured"] | ["unknown_bucket"]
function checks.reconfigure(event)
  list(event.setting, 'setting')
  for _, change in ipairs(list(event.lanes, 'lanes')) do laneSetting(change) end
end

function events.reconfigure(event, now)
  applySettingsOnce(event.setting, now)
  for _, change in ipairs(event.lanes) do
    local lane = laneOf(change.lane)
    if lane then applyLaneSetting(lane, change) end
  end
  pump(now)
  return '["reconfigured"]'
end
