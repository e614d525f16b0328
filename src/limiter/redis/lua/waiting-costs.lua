-- Mirror of waiting-costs.policy.ts: what waiting calls cost.

-- What a call can take: of each meter no more than its limit, as far as one is known.
local function cappedCosts(asked)
  local costs = {}
  for i, cost in ipairs(asked) do
    local meter = bucket.meters[cost[1]]
    costs[i] = { cost[1], meter and meter.limit and math.min(cost[2], meter.limit) or cost[2] }
  end
  return costs
end

-- The service cost of a call in its lane: the time for which it keeps its most expensive meter busy, 1 where nothing is known.
local function serviceCost(costs)
  local longest = 0
  for _, cost in ipairs(costs) do
    local name, units = cost[1], cost[2]
    local meter = bucket.meters[name]
    if units > 0 and meter and meter.limit and string.sub(name, -4) ~= '_day' then
      longest = math.max(longest, (math.min(units, meter.limit) * meter.windowMs) / meter.limit)
    end
  end
  return longest > 0 and longest or 1
end

-- Adds the costs of a waiting ticket to the sums of its lane and its bucket, or takes them out again.
local function sumCosts(lane, ticket, sign)
  for _, cost in ipairs(ticket.costs) do
    local name, units = cost[1], cost[2] * sign
    lane.waitingCosts[name] = (lane.waitingCosts[name] or 0) + units
    bucket.waitingCosts[name] = (bucket.waitingCosts[name] or 0) + units
  end
end

-- Adds them and takes them out again, which leaves the sums as the line does, to the last bit.
local function passThrough(lane, ticket)
  for _, cost in ipairs(ticket.costs) do
    local name, units = cost[1], cost[2]
    lane.waitingCosts[name] = (lane.waitingCosts[name] or 0) + units - units
    bucket.waitingCosts[name] = (bucket.waitingCosts[name] or 0) + units - units
  end
end

-- What waiting calls with these costs in all take from a meter; from a window of requests that was added later, too.
local function waitingUnits(costs, name)
  if name ~= 'requests_burst' and name ~= 'requests_hour' then return costs and costs[name] or 0 end
  return bucket.meters[name] and costs and costs.requests or 0
end

local noteEstimate, forgetEstimate
do
  local function estimateMember(ticket) return 'c:' .. ticket.document .. ':' .. ticket.id end

  -- A ticket that waits with an estimate is found again when the cost of its document becomes known.
  function noteEstimate(ticket)
    if not ticket.document then return end
    local known = recordOf('d', ticket.document)
    if not known or known.kind ~= 'reported' then put(estimateMember(ticket)) end
  end

  -- The ticket does not wait any more, or its cost is known.
  function forgetEstimate(ticket)
    if ticket.document then drop(estimateMember(ticket)) end
  end
end
