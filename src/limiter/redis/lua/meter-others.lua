-- Mirror of meter-others.policy.ts: what others take from a meter, and what is kept free for them.
local netRate, keptFree, noteOthers, noteOthersBurst, noteContest
do
  -- @constant reportedMemoryMs unreportedMemoryMs maxReportedRiseMs maxUnreportedRiseMs negligibleShare contestMemoryMs
  -- @constant keptDrainMs burstMargin refusalMargin maxOthersShare keptWaitingShare maxKeptWaitingShare maxKeptShare

  function netRate(meter)
    local rate = drainRate(meter)
    return rate - math.min(meter.others, rate * maxOthersShare)
  end

  function keptFree(meter, waiting)
    local limit, contest = meter.limit, meter.contest
    if not limit or not contest then return 0 end
    local wanted = math.max(contest.units, waiting * keptWaitingShare)
    return math.min(wanted, limit * maxKeptShare, math.max(contest.allowance, waiting * maxKeptWaitingShare))
  end

  function noteOthers(meter, change, sinceMs)
    if sinceMs <= 0 then return end
    local rate = drainRate(meter)
    local isReported = meter.fastestMs
    local rise = math.min(change, rate * (isReported and maxReportedRiseMs or maxUnreportedRiseMs))
    local others = meter.others + rise / (sinceMs + (isReported and reportedMemoryMs or unreportedMemoryMs))
    meter.others = math.max(0, math.min(others, rate))
  end

  function noteOthersBurst(meter, units, uncertainty, cost, now)
    local contest = meter.contest
    if not contest or cost <= 0 then return end
    if units > cost / 2 then
      meter.contest = { math.max(contest.units, burstMargin * (units + uncertainty) + cost), contest.allowance, now }
      return
    end
    local isOver = now - contest.at > math.max(contestMemoryMs, meter.windowMs)
    if not isOver or meter.others >= negligibleShare * drainRate(meter) then return end
    local left = contest.units - cost
    meter.contest = left > 0 and { left, contest.allowance, now }
  end

  function noteContest(meter, cost, now)
    local contest = meter.contest or { 0, 0, now }
    local units = math.max(refusalMargin * contest.units, contest.units + cost, 2 * cost, keptDrainMs * drainRate(meter))
    meter.contest = { units, contest.allowance + 2 * cost, now }
  end
end
