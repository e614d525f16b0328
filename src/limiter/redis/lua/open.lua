-- An operator reopens a bucket that a response closed until a time. Mirror of `open` in scheduler.policy.ts.
-- Guarantees: a bucket that was closed after `before` stays closed, so repeating the event undoes nothing that happened since.
-- Event { before (absent = now) }
-- Reply ["opened"] | ["unknown_bucket"]
function checks.open(event)
  if event.before then event.before = number(event.before, 'before') end
end

function events.open(event, now)
  if not bucket.closedAt or bucket.closedAt <= (event.before or now) then
    bucket.closedUntil = false
    for _, meter in pairs(bucket.meters) do
      if meter.at > now then
        meter.at = now
        meter.peak = false
        if meter.heardAt and meter.heardAt > now then meter.heardAt = now end
      end
    end
  end
  pump(now)
  return '["opened"]'
end
