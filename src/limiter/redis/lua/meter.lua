-- Mirror of meter.policy.ts: one dimension of a bucket. Same names, same order of operations, so that both stores
-- come to the same numbers.
-- @constant jitterUnitShare minJitterMs maxJitterMs maxLatenessMs windowsOfLateness quietGapMs calmLatenessMs othersMemoryMs allowanceShare debtWindows

local function jitterUnits(meter)
  local rate = drainRate(meter)
  return rate * math.min(maxJitterMs, math.max(minJitterMs, jitterUnitShare / rate))
end

local function latenessMs(meter)
  local jitterMs = math.min(maxJitterMs, math.max(minJitterMs, jitterUnitShare / drainRate(meter)))
  return math.max(jitterMs, math.min(maxLatenessMs, meter.windowMs / windowsOfLateness))
end

local function restMs(meter, now) return math.max(0, meter.at - now) end

local function levelAt(meter, now)
  if meter.log then return windowLog.loggedUnits(meter, now) end
  if now <= meter.at then return meter.level end
  local sinceMs = now - meter.at
  local drained = meter.limit and sinceMs * netRate(meter) or meter.level * (sinceMs / (sinceMs + meter.windowMs))
  return math.max(0, meter.level - drained)
end

local function drain(meter, now)
  if now <= meter.at then return end
  local sinceMs = now - meter.at
  meter.level = levelAt(meter, now)
  meter.others = meter.others - meter.others * (sinceMs / (sinceMs + othersMemoryMs))
  meter.at = now
  if meter.level == 0 then meter.emptyAt = now end
end

-- Milliseconds until the meter has room for a call of `units` units, while `waiting` units wait for the meter.
local function roomInMs(meter, units, waiting, now)
  local limit = meter.limit
  if not limit or units <= 0 then return 0 end
  local cost = math.min(units, limit)
  if meter.log then return windowLog.windowWaitMs(meter, cost, now) end
  local usable = math.max(cost, limit - keptFree(meter, waiting))
  local over = levelAt(meter, now) + cost - usable
  if over <= 0 then return 0 end
  local emptyInMs = math.max(0, meter.at - now + meter.level / drainRate(meter))
  return math.min(restMs(meter, now) + over / netRate(meter), emptyInMs)
end

-- The mark is { cost, granted right after, returned, when it drains on, calls in transit } of the grant.
local function take(meter, asked, now, inTransit)
  drain(meter, now)
  local cost = asked
  if meter.limit then cost = math.min(asked, meter.limit) end
  local returned, contest = meter.returned, meter.contest
  if cost > 0 and meter.limit then
    local lateMs = latenessMs(meter) - meter.level / drainRate(meter)
    meter.at = math.max(meter.at, now + lateMs)
  end
  meter.level = meter.level + cost
  windowLog.logUnits(meter, cost, now)
  meter.granted = meter.granted + cost
  if contest then contest.allowance = contest.allowance + cost * allowanceShare end
  return { cost, meter.granted, returned, meter.at, inTransit }
end

local function markAnswered(meter, mark) meter.answered = meter.answered + mark[1] end

local function markUnreported(meter, mark, at)
  local unreported = meter.unreported or { 0, at }
  meter.unreported = { unreported.units + mark[1], math.max(unreported.at, at) }
end

local function refund(meter, units, now)
  drain(meter, now)
  meter.level = math.max(0, meter.level - units)
end

-- Corrects the meter by what a call spent, which had reserved `reserved` units when it was granted.
local function settleUnits(meter, reserved, spent, grantedAt, now)
  drain(meter, now)
  local limit, level = meter.limit, meter.level
  local back = reserved - (limit and math.min(spent, limit) or spent)
  if back > 0 and (meter.emptyAt or grantedAt) > grantedAt then return end
  local highest = limit and math.max(level, limit * debtWindows) or level - back
  meter.level = math.max(0, math.min(level - back, highest))
end

local function giveUnitsBack(meter, mark, grantedAt, now)
  local cost = mark[1]
  meter.returned = meter.returned + cost
  windowLog.unlogUnits(meter, cost, grantedAt)
  local hasRested = meter.at == mark[4] and meter.at > now
  drain(meter, now)
  -- What was in the meter all the time since the grant: it was never empty, and drained in any case.
  local heldThroughout = meter.heardAt and 0 or meter.level - (meter.granted - mark[2])
  local left = math.max(cost - (now - grantedAt) * drainRate(meter), heldThroughout)
  refund(meter, hasRested and cost or math.max(0, math.min(cost, left)), now)
  if meter.level == 0 then meter.at = now end
end
