--[[
A waiting ticket leaves its lane. Mirror of `cancel` in scheduler.policy.ts.

Guarantees: idempotent; a ticket that holds a lease is left alone, because its lease must be settled.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 ticket  4 now ('' = TIME)
Reply cancelled {} | not_waiting {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller, ticketId = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica'), identifier(ARGV[3], 'ticket')
local now = timeOf(ARGV[4])
-- @include scheduler

if not openBucket() then return replyUnknown('not_waiting', now) end
now = notBefore(now)
local ticket = ticketOf(ticketId)
local waits = ticket and not ticket.lease
if waits then
  dequeue(laneOf(ticket.lane), ticket)
  discard('t', ticketId)
end
pump(now)
save(now)
return replyWith(waits and 'cancelled' or 'not_waiting', {}, tellGrants(nil), now)
