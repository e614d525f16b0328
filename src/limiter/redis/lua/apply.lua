--[[
Applies events to a bucket: reads it once, applies one after the other, each as if it had come alone, and writes what
changed. Mirror of `apply` in apply.policy.ts; what an event means is in the file of its kind.

Guarantees: every event is safe to repeat; a bucket that Redis does not know is created by an admission and by nothing
else; a batch that is malformed leaves no trace. After 64 grants the rest of a batch is left out, so that no run is long.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 batch: JSON { bucket, replica, now (absent = TIME), events: [{ kind, ... }] }
Reply JSON [now, ms until the next pump (null = none by itself), ms closed, creation time of the bucket (null = it is not known),
      the replica that asks is expected to pump then, grants, grants it has not named (with a tick), reply of each event]
]]
local apply
do
  local unknown = { settle = '["unknown_lease"]', learn = '["unknown_lease"]', charge = '["unknown_lease"]',
    cancel = '["unknown_bucket"]', forecast = '["not_waiting"]', tick = '["unknown_bucket"]',
    reconfigure = '["unknown_bucket"]', wake = '["unknown_bucket"]', open = '["unknown_bucket"]' }

  function apply(keys, args)
    local batch = readBatch(args[1])
    begin(keys, batch)
    local isKnown, replies, now = openBucket(), {}, batch.now
    if isKnown then now = notBefore(now) end
    for i, event in ipairs(batch.events) do
      if #granted >= maxPerPump then break end
      if not isKnown and event.kind == 'admit' then
        createBucket(event.setting.probe, now)
        isKnown = true
      end
      replies[i] = isKnown and events[event.kind](event, now) or unknown[event.kind]
    end
    if not isKnown then return replyUnknown(replies, now) end
    -- What a search for tickets of dead replicas has left is for the next tick, which is due at once.
    if pumped and bucket.searchedTo then nextAt = now end
    local isPumpLeader = promised(now)
    save(now)
    local grants = reportGrants()
    if closes then reportClosed(now) end
    return replyWith(replies, grants, isPumpLeader, now)
  end
end
