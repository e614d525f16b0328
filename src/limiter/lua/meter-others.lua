-- Mirror of meter-others.policy.ts: what others take from a meter, and what is kept free for them. A contest is
-- { units, allowance, at }, or false.
-- A script may have 200 locals: what nobody else needs is local to the block.
local drainRate, netRate, keptFree, noteOthers, noteGulp, noteContest
do
  local toldMemoryMs = 10000
  local untoldMemoryMs = 3000
  local longestToldRiseMs = 1000
  local longestUntoldRiseMs = 10000
  local negligibleShare = 0.05
  local contestMemoryMs = 60000
  local keptDrainMs = 50
  local gulpMargin = 1.25
  local refusalMargin = 1.5
  local largestOthersShare = 0.75
  local keptWaitingShare = 0.02
  local mostKeptWaitingShare = 0.05
  local mostKeptShare = 0.15

  -- Units drained per millisecond; 0 while no limit is known.
  function drainRate(meter) return meter.limit and meter.limit / meter.windowMs or 0 end

  function netRate(meter)
    local rate = drainRate(meter)
    return rate - math.min(meter.others, rate * largestOthersShare)
  end

  function keptFree(meter, waiting)
    local limit, contest = meter.limit, meter.contest
    if not limit or not contest then return 0 end
    local wanted = math.max(contest[1], waiting * keptWaitingShare)
    return math.min(wanted, limit * mostKeptShare, math.max(contest[2], waiting * mostKeptWaitingShare))
  end

  function noteOthers(meter, change, sinceMs)
    if sinceMs <= 0 then return end
    local rate = drainRate(meter)
    local isTold = meter.fastestMs
    local told = math.min(change, rate * (isTold and longestToldRiseMs or longestUntoldRiseMs))
    local others = meter.others + told / (sinceMs + (isTold and toldMemoryMs or untoldMemoryMs))
    meter.others = math.max(0, math.min(others, rate))
  end

  function noteGulp(meter, units, grain, cost, now)
    local contest = meter.contest
    if not contest or cost <= 0 then return end
    if units > cost / 2 then
      meter.contest = { math.max(contest[1], gulpMargin * (units + grain) + cost), contest[2], now }
      return
    end
    local isOver = now - contest[3] > math.max(contestMemoryMs, meter.windowMs)
    if not isOver or meter.others >= negligibleShare * drainRate(meter) then return end
    local left = contest[1] - cost
    meter.contest = left > 0 and { left, contest[2], now }
  end

  function noteContest(meter, cost, now)
    local units, allowance = 0, 0
    if meter.contest then units, allowance = meter.contest[1], meter.contest[2] end
    units = math.max(refusalMargin * units, units + cost, 2 * cost, keptDrainMs * drainRate(meter))
    meter.contest = { units, allowance + 2 * cost, now }
  end
end
