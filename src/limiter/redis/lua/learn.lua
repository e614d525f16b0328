-- Learns from a response whose call is still in flight. Mirror of `learn` in scheduler.policy.ts.
-- Guarantees: a token that is not known changes nothing but what the pump does; the lease goes on.
-- Event { lease, lesson: { sentAt, headAt, meters: [{ meter, limit, windowMs, resetMs, lowest, highest }],
--   rateMeter, isTimed, refusedUnits, requestedCost } }; what is not stated is absent.
-- Reply ["learned"] | ["unknown_lease"]
function checks.learn(event)
  identifier(event.lease, 'lease')
  lessonOf(list(event.lesson, 'lesson'))
end

function events.learn(event, now)
  local lease = leaseOf(event.lease)
  if lease then
    noteNamed(lease)
    applyLesson(lease, event.lesson, 0, now)
  end
  pump(now)
  return lease and '["learned"]' or '["unknown_lease"]'
end
