-- Mirror of lanes.policy.ts: entering and leaving the line, sleeping and waking, and the one decision whether a lane
-- is in the running.
-- @constant orderUnit
-- A lane's `asleep` is a list of times, one per reason in this order; false = not for this reason.
local sleepReasons = { 'ceiling_minute', 'ceiling_day', 'backoff', 'document' }
local sleepIndex = {}
for i = 1, #sleepReasons do sleepIndex[sleepReasons[i]] = i end

-- When the lane wakes; false = it does not sleep.
local function asleepUntil(lane)
  local asleep = lane.asleep
  if not (asleep[1] or asleep[2] or asleep[3] or asleep[4]) then return false end
  local latest = false
  for i = 1, #sleepReasons do
    local till = asleep[i]
    if till and (not latest or till > latest) then latest = till end
  end
  return latest
end

local function readyMember(lane)
  return lane.readyAs and 'r:' .. lane.readyAs .. ':' .. sortable(lane.start) .. ':' .. lane.key or false
end

local function idleMember(lane)
  local idle = lane.waiting == 0 and lane.inFlight == 0 and not asleepUntil(lane)
  return idle and 'i:' .. sortable(lane.start) .. ':' .. lane.key or false
end

-- During a run, by lane: under which members the sorted set has it (between runs they follow from its record), and the
-- first ticket of its line.
local readyMembers, idleMembers, heads

local function laneOf(key)
  local lane = recordOf('l', key)
  if lane and readyMembers[key] == nil then
    readyMembers[key], idleMembers[key] = readyMember(lane), idleMember(lane)
  end
  return lane
end

local function moveMember(members, key, member)
  local before = members[key]
  if before == member then return end
  if before then drop(before) end
  if member then put(member) end
  members[key] = member
end

-- Looked up again only after the line has changed.
local function headOf(lane)
  local head = heads[lane.key]
  if not head then
    head = ticketOf(string.sub(firstOf('l:' .. lane.key), #lane.key + 21))
    heads[lane.key] = head
  end
  return head
end

-- The one place that decides whether a lane is in the running.
local function refreshReadiness(lane)
  if lane.waiting == 0 and not lane.readyAs then
    lane.start = math.max(lane.start, bucket.virtual)
    return
  end
  local ready = lane.waiting > 0 and not asleepUntil(lane)
    and (not lane.maxInFlight or lane.inFlight < lane.maxInFlight)
    and (not lane.slots or lane.unconfirmed < math.max(1, lane.slots))
  if not lane.readyAs then lane.start = math.max(lane.start, bucket.virtual) end
  local ticket = ready and headOf(lane)
  lane.readyAs = ticket and ticket.callClass or false
  moveMember(readyMembers, lane.key, readyMember(lane))
end

-- Only a tick asks for idle lanes, so their section is brought up to date before it does, and when a run ends.
local function refreshIdleness()
  for field, lane in pairs(current) do
    if lane and string.byte(field) == 108 then moveMember(idleMembers, lane.key, idleMember(lane)) end
  end
end

-- The times at which the lane wakes have changed, from the one before.
local function rescheduleWaking(lane, before)
  local till = asleepUntil(lane)
  if before ~= till then
    if before then
      drop('s:' .. sortable(before) .. ':' .. lane.key)
      noteDrop('s', before)
    end
    if till then
      put('s:' .. sortable(till) .. ':' .. lane.key)
      notePut('s', till)
    end
  end
  refreshReadiness(lane)
end

local function sleep(lane, because, untilTime)
  local before, i = asleepUntil(lane), sleepIndex[because]
  lane.asleep[i] = lane.asleep[i] and math.max(lane.asleep[i], untilTime) or untilTime
  rescheduleWaking(lane, before)
end

-- Ends the lane's sleeps for these reasons.
local function wake(lane, reasons)
  local before, changed = asleepUntil(lane), false
  for _, reason in ipairs(reasons) do
    local i = sleepIndex[reason]
    if lane.asleep[i] then changed = true end
    lane.asleep[i] = false
  end
  if changed then rescheduleWaking(lane, before) end
end

-- A call that was not sent has given its slot of the ceiling back: the lane does not sleep any more for a ceiling which that
-- slot had filled. Its next grant finds out what the ceiling allows.
local function slotIsBack(lane, now)
  lane.slotBackAt = now
  if lane.slots then lane.slots = math.max(1, lane.slots) end
  wake(lane, { 'ceiling_minute', 'ceiling_day' })
end

-- Other limits of the ceiling wake a lane that slept for them.
local function applyLaneSetting(lane, setting)
  if lane.weight ~= setting.weight then
    if lane.waiting > 0 then bucket.waitingWeight = bucket.waitingWeight + (setting.weight - lane.weight) end
    lane.weight = setting.weight
  end
  if lane.maxInFlight ~= setting.maxInFlight then
    lane.maxInFlight = setting.maxInFlight
    refreshReadiness(lane)
  end
  lane.perMinute = setting.perMinute
  if lane.ceilingTag == setting.ceilingTag then return end
  lane.ceilingTag = setting.ceilingTag
  if lane.slots then lane.slots = math.max(1, lane.slots) end
  wake(lane, { 'ceiling_minute', 'ceiling_day' })
end

local function createLane(key, setting)
  local lane = { key, setting.weight, setting.maxInFlight, setting.perMinute, setting.ceilingTag, bucket.virtual, 0, 0, {},
    { false, false, false, false }, false, 0, 0, false, {}, false, false }
  readyMembers[key], idleMembers[key] = false, false
  keep('l', key, lane)
  return lane
end

local enqueue, dequeue
do
  -- A ticket starts (+1) or stops (-1) waiting: the sums of its lane, its bucket and its replica.
  local function countWaiting(lane, ticket, sign)
    heads[lane.key] = nil
    lane.waiting = lane.waiting + sign
    bucket.waiting = bucket.waiting + sign
    waitingChange[ticket.replica] = (waitingChange[ticket.replica] or 0) + sign
    sumCosts(lane, ticket, sign)
  end

  -- True when the lane sleeps for the document of this ticket, its next one.
  local function sleepsFor(lane, ticket)
    if not lane.asleep[sleepIndex.document] then return false end
    return headOf(lane) == ticket
  end

  function enqueue(lane, ticket)
    if lane.waiting == 0 then bucket.waitingWeight = bucket.waitingWeight + lane.weight end
    put(lineMember(lane.key, ticket.order, ticket.id))
    countWaiting(lane, ticket, 1)
    noteEstimate(ticket)
    if sleepsFor(lane, ticket) then wake(lane, { 'document' }) end
    refreshReadiness(lane)
  end

  function dequeue(lane, ticket)
    local wasFirst = sleepsFor(lane, ticket)
    if not drop(lineMember(lane.key, ticket.order, ticket.id)) then return end
    countWaiting(lane, ticket, -1)
    forgetEstimate(ticket)
    if lane.waiting == 0 then bucket.waitingWeight = bucket.waitingWeight - lane.weight end
    if wasFirst then wake(lane, { 'document' }) end
    refreshReadiness(lane)
  end
end

local function confirm(lane, lease)
  if lease.stage ~= 'unconfirmed' then return end
  lease.stage = 'confirmed'
  lane.unconfirmed = lane.unconfirmed - 1
end

local function forgetIdleLanes(most)
  for _ = 1, most do
    local key, start = firstByTime('i')
    if not key or start > bucket.virtual then return end
    drop('i:' .. sortable(start) .. ':' .. key)
    discard('l', key)
  end
end

-- Returns what is left of the budget.
local function wakeLanes(budget, now)
  while budget > 0 and isDue('s', now) do
    local key, at = firstByTime('s')
    budget = budget - 1
    drop('s:' .. sortable(at) .. ':' .. key)
    noteDrop('s', at)
    local lane = laneOf(key)
    if lane then
      lane.asleep = { false, false, false, false }
      if lane.slots then lane.slots = math.max(1, lane.slots) end
      refreshReadiness(lane)
    end
  end
  return budget
end
