-- Mirror of pump.policy.ts: the pump in which every transition ends. Sweeps what expired, wakes lanes, then grants
-- heads of lanes in fair order while the bucket is open and every meter the head needs has room. Its work is bounded
-- by `maxPerPump`; each piece of it is O(log n).
-- Without a counterpart in the policy: `mayGoAtOnce`, `grantAtOnce` and `roomForCallInMs`, the short way of a call that finds nobody
-- waiting and room in every meter, as most calls do. It leaves out the line (ADR 13); its result must be that of the policy's way,
-- `enqueue` and a pump, which test/limiter/parity.test.ts compares.
-- `lease.stage`, `lane.abandoned` and the like are fields that a `-- @record` line names: they become positions of a list
-- (protocol/lua-source.ts).
-- @constant replicaLifeMs maxPerPump

-- State of this run over all its pumps: the grants in their order, and when the next one may be possible (nil = never by
-- itself, or nobody waits).
local granted, nextAt, pumped

local function soonest(a, b)
  if not a then return b end
  if not b then return a end
  return math.min(a, b)
end

local function expiryMember(lease) return 'e:' .. sortable(lease.expiresAt) .. ':' .. lease.token end

-- The lease lives until then.
local function expireAt(lease, at)
  drop(expiryMember(lease))
  noteDrop('e', lease.expiresAt)
  lease.expiresAt = at
  put(expiryMember(lease))
  notePut('e', at)
end

-- The replica has named the grant: it need not be reported again.
local function noteNamed(lease)
  if lease.named then return end
  lease.named = true
  drop('u:' .. lease.replica .. ':' .. lease.token)
end

-- A position in flight that a call of unknown fate kept is free again.
local function forgetAbandoned(lane, expiresAt)
  for i, at in ipairs(lane.abandoned) do
    if at == expiresAt then return table.remove(lane.abandoned, i) end
  end
end

-- Ends the lease's hold on its lane; meters are settled by the caller. (`end` is a word of Lua.)
local function finish(lane, lease)
  learnUnreported(lease, lease.expiresAt)
  drop(expiryMember(lease))
  noteDrop('e', lease.expiresAt)
  noteNamed(lease)
  discard('e', lease.token)
  bucket.leases = bucket.leases - 1
  lane.inFlight = lane.inFlight - 1
  if lease.stage == 'abandoned' then forgetAbandoned(lane, lease.expiresAt) end
  if bucket.leases == 0 and not bucket.opened then bucket.probingSince = false end
  refreshReadiness(lane)
end

-- Returns what is left of the budget.
local function sweepLeases(budget, now)
  while budget > 0 and isDue('e', now) do
    local token = firstByTime('e')
    budget = budget - 1
    local lease = leaseOf(token)
    local lane = laneOf(lease.lane)
    confirm(lane, lease)
    endProbe(lease, now)
    finish(lane, lease)
    if lease.stage ~= 'abandoned' then discard('t', lease.ticket) end
  end
  return budget
end

local function isAlive(replica, now)
  local heard = redis.call('ZSCORE', replicasKey, replica)
  return heard and tonumber(heard) + replicaLifeMs >= now
end

-- By bytes: Lua's own `<` follows the locale of the server.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local left, right = string.byte(a, i), string.byte(b, i)
    if left ~= right then return left < right end
  end
  return #a < #b
end

-- Key of the ready lane that is first in fair order, among the classes that are not blocked, and the class under which
-- it stands there. One step per class. This is the inner loop of `nextHead` in pump.policy.ts.
local function firstReady(blocked)
  local best, bestStart, bestClass
  local from = '[r:'
  while true do
    local member = redis.call('ZRANGEBYLEX', orderKey, from, '(r;', 'LIMIT', '0', '1')[1]
    if not member then return best, bestClass end
    local callClass, digits, key = string.match(member, '^r:([^:]+):(%x+):(.+)$')
    if not blocked[callClass] then
      local start = unsortable(digits)
      if not best or start < bestStart or (start == bestStart and precedes(key, best)) then
        best, bestStart, bestClass = key, start, callClass
      end
    end
    from = '[r:' .. callClass .. ';'
  end
end

-- Picks the next workspace: the ready lane with the smallest start tag and its first ticket, passing over tickets of dead
-- replicas; also what is left of the budget, and the class under which the lane is ready.
local function nextHead(blocked, budget, now)
  while budget > 0 do
    local key, readyAs = firstReady(blocked)
    if not key then break end
    local lane = laneOf(key)
    local ticket = headOf(lane)
    if isAlive(ticket.replica, now) then return lane, ticket, budget, readyAs end
    budget = budget - 1
    dequeue(lane, ticket)
    discard('t', ticket.id)
  end
  return nil, nil, budget
end

-- Milliseconds until every meter of the ticket's call has room for it; 0 = now.
local function roomForTicketInMs(ticket, now)
  local maxMs = 0
  for _, cost in ipairs(knownCosts(ticket.costs, ticket.document)) do
    maxMs = math.max(maxMs, roomInMs(meterOf(cost[1], now), cost[2], bucket.waitingCosts[cost[1]] or 0, now))
  end
  return maxMs
end

-- The same for a call that is in no line yet and has no document; its costs count as waiting, as they would in its line.
local function roomForCallInMs(costs, now)
  local maxMs = 0
  for _, cost in ipairs(costs) do
    local meter, waiting = bucket.meters[cost[1]], (bucket.waitingCosts[cost[1]] or 0) + cost[2]
    if meter then maxMs = math.max(maxMs, roomInMs(meter, cost[2], waiting, now)) end
  end
  return maxMs
end

local function inTransitBefore(tokens, meterName)
  local list = {}
  for _, token in ipairs(tokens) do
    local lease = leaseOf(token)
    local mark = markOf(lease, meterName)
    if mark and mark[1] > 0 then list[#list + 1] = { lease.grantedAt, mark[1] } end
  end
  return list
end

-- The ticket is in no line any more.
local function grant(lane, ticket, now)
  bucket.sequence = bucket.sequence + 1
  local quiet = not bucket.lastGrantAt or now - bucket.lastGrantAt >= quietGapMs
  if not quiet then bucket.crowdedAt = now end
  local isLong = not bucket.crowdedAt or now - bucket.crowdedAt >= maxLatenessMs
  local spacing = not quiet and 'crowded' or isLong and 'calm' or 'quiet'
  local before = spacing == 'calm' and between('g', now - calmLatenessMs, now) or {}
  local costs, marks = knownCosts(ticket.costs, ticket.document), {}
  for i, cost in ipairs(costs) do
    local meter = meterOf(cost[1], now)
    marks[i] = { markNames.of(meter), take(meter, cost[2], now, inTransitBefore(before, cost[1])) }
  end
  local token = ticket.id .. '.' .. string.format('%.0f', bucket.sequence)
  local lease = { token, ticket.id, lane.key, ticket.replica, ticket.document, now, spacing, marks,
    now + ticket.leaseMs, false, lane.slots and 'unconfirmed' or 'confirmed', false }
  ticket.lease = lease.token
  keep('e', lease.token, lease)
  put(expiryMember(lease))
  notePut('e', lease.expiresAt)
  put('u:' .. lease.replica .. ':' .. lease.token)
  if quiet then put(unansweredMember(lease)) end
  bucket.leases = bucket.leases + 1
  firstCalls.notePilot(now)
  bucket.lastGrantAt = now
  if not bucket.opened and not bucket.probingSince then bucket.probingSince = now end
  bucket.virtual = math.max(bucket.virtual, lane.start)
  lane.start = lane.start + serviceCost(costs) / lane.weight
  lane.inFlight = lane.inFlight + 1
  lane.grantedAt = now
  if lease.stage == 'unconfirmed' then lane.unconfirmed = lane.unconfirmed + 1 end
  beginProbe(lease, now)
  refreshReadiness(lane)
  granted[#granted + 1] = lease
  return lease
end

local function pump(now)
  pumped, nextAt = true, nil
  local budget = wakeLanes(sweepLeases(maxPerPump, now), now)
  if bucket.waiting == 0 then return end
  if closedMs(now) > 0 then
    nextAt = bucket.closedUntil
    return
  end
  nextAt = soonest(earliestOf('s') or nil, earliestOf('e') or nil)
  local blocked = {}
  while bucket.waiting > 0 do
    if budget <= 0 then
      nextAt = now
      return
    end
    local nextFirst = firstCalls.nextFirstCallAt(now)
    if nextFirst > now then
      nextAt = soonest(nextAt, nextFirst)
      return
    end
    local lane, ticket, readyAs
    lane, ticket, budget, readyAs = nextHead(blocked, budget, now)
    if not lane then
      if budget <= 0 then nextAt = now end
      return
    end
    if waitsForResponse(lane, ticket, now) then
      budget = budget - 1
      nextAt = soonest(nextAt, asleepUntil(lane) or nil)
    else
      local inMs = roomForTicketInMs(ticket, now)
      if inMs > 0 then
        -- Not the ticket's own class: each round blocks a class that could be chosen, or spends some of the budget.
        blocked[readyAs] = true
        nextAt = soonest(nextAt, now + inMs)
      else
        budget = budget - 1
        dequeue(lane, ticket)
        grant(lane, ticket, now)
      end
    end
  end
  nextAt = nil
end

-- True when the pump would grant the call now: then its forecast is 0, and it is not refused. `lane`: nil = its lane is new.
local function mayGoAtOnce(lane, asked, now)
  if bucket.waiting > 0 or asked.document or closedMs(now) > 0 then return false end
  if asked.maxInFlight and (lane and lane.inFlight or 0) >= asked.maxInFlight then return false end
  if lane and asleepUntil(lane) then return false end
  if lane and lane.slots and lane.unconfirmed >= math.max(1, lane.slots) then return false end
  return firstCalls.nextFirstCallAt(now) <= now and roomForCallInMs(asked.costs, now) <= 0
end

-- Grants a ticket that may go at once. Leaves the state that `enqueue` and a pump would leave.
local function grantAtOnce(lane, ticket, now)
  lane.start = math.max(lane.start, bucket.virtual)
  passThrough(lane, ticket)
  pumped, nextAt = true, nil
  return grant(lane, ticket, now)
end
