--[[
Expected wait of a ticket that already waits. Mirror of `forecast` in scheduler.policy.ts.

Guarantees: grants nothing and moves nobody; only brings the meters it looks at to the time it looks.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 ticket  4 now ('' = TIME)
Reply waiting {forecast ms, ahead, held by} | not_waiting {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller, ticketId = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica'), identifier(ARGV[3], 'ticket')
local now = timeOf(ARGV[4])
-- @include scheduler

if not openBucket() then return replyUnknown('not_waiting', now) end
now = notBefore(now)
local waitMs, ahead, heldBy = forecastOf(ticketOf(ticketId), now)
save(now)
if not waitMs then return replyWith('not_waiting', {}, {}, now) end
return replyWith('waiting', { text(waitMs), text(ahead), heldBy }, {}, now)
