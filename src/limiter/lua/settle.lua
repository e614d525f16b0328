--[[
Ends a lease, once, and learns from its answer. Mirror of `settle` in scheduler.policy.ts.

Guarantees: a token that is not known any more (settled, expired, lost) changes nothing but what the pump does; a call
whose fate is unknown keeps a capped lane taken until the lease expires.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 lease  4 kind (succeeded, throttled, dropped, returned, unknown)  5 spent, or what a
      returned ticket costs from now on ('-' = as reserved)  6 close ms  7 throttled: requeue, returned: the lane goes on
      as before (0/1)  8 sleep ms  9 sent ago ms
      ('' = no lesson)  10 head ago ms  11 reports  12 meter of a rate throttle ('' = none named)  13 units that the
      refused call asked of it ('' = not told)  14 now ('' = TIME)
Reply settled {} | unknown_lease {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller, token = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica'), identifier(ARGV[3], 'lease')
local kind, costs = ARGV[4], ARGV[5] ~= '-' and costList(ARGV[5], 'costs') or nil
local closeMs, requeue, sleepMs = number(ARGV[6], 'closeMs'), ARGV[7] == '1', number(ARGV[8], 'sleepMs')
local asBefore = requeue
local lesson, now = lessonOf(ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]), timeOf(ARGV[14])
-- @include scheduler

local function requeueOrForget(lane, lease, again)
  if not again then return discard('t', lease.ticket) end
  local ticket = ticketOf(lease.ticket)
  ticket.lease = false
  enqueue(lane, ticket)
end

local settlements = {}

function settlements.succeeded(lane, lease)
  if costs then correct(lease, costs, now) end
  if lesson then applyLesson(lease, lesson, now) else applySilence(lease, now) end
  noteService(lane, now - lease.grantedAt)
  finish(lane, lease)
  requeueOrForget(lane, lease, false)
end

function settlements.throttled(lane, lease)
  applyThrottle(lease, closeMs, lesson, now)
  finish(lane, lease)
  requeueOrForget(lane, lease, requeue)
  if sleepMs > 0 then sleep(lane, now + sleepMs) end
end

function settlements.dropped(lane, lease)
  giveBack(lease, now)
  finish(lane, lease)
  requeueOrForget(lane, lease, false)
end

function settlements.returned(lane, lease)
  giveBack(lease, now)
  finish(lane, lease)
  if costs then ticketOf(lease.ticket).costs = takeable(costs) end
  requeueOrForget(lane, lease, true)
  if not asBefore then lane.places = 1 end
  sleep(lane, now + sleepMs)
end

function settlements.unknown(lane, lease)
  if lane.maxInFlight then
    noteTold(lease)
    lease.abandoned = true
    expireAt(lease, now + ticketOf(lease.ticket).leaseMs)
    table.insert(lane.abandoned, lease.expiresAt)
    table.sort(lane.abandoned)
  else
    finish(lane, lease)
  end
  discard('t', lease.ticket)
end

if not settlements[kind] then invalid('kind') end
if not openBucket() then return replyUnknown('unknown_lease', now) end
now = notBefore(now)
local lease = leaseOf(token)
local held = lease and not lease.abandoned
if held then
  local lane = laneOf(lease.lane)
  confirm(lane, lease)
  settlements[kind](lane, lease)
end
pump(now)
save(now)
local grants = tellGrants(nil)
if held and kind == 'throttled' and closeMs > 0 then tellClosed(now) end
return replyWith(held and 'settled' or 'unknown_lease', {}, grants, now)
