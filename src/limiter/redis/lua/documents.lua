-- Mirror of documents.policy.ts: what GraphQL documents cost, as far as responses stated it. `kind` of a record: `probing`,
-- `reported` or `unreported`; `at` = when something was last learned of the document.
local knownCosts, waitsForResponse, beginProbe, endProbe, dropProbe, learnDocument
-- Lua allows 200 local names in one function, and an included file is a part of its script's.
do
  -- @constant requestWindows maxProbeMs maxDocuments maxCorrected

  local function documentOf(name) return name and recordOf('d', name) or nil end

  -- What a call that asks for the document costs, as far as known, of every window that the bucket has.
  function knownCosts(costs, document)
    local known, meters = documentOf(document), bucket.meters
    local isReported = known and known.kind == 'reported'
    if not isReported and not meters.requests_burst and not meters.requests_hour then return costs end
    local units, list = {}, {}
    for _, cost in ipairs(costs) do units[cost[1]] = cost[2] end
    if isReported then units.cost = known.points end
    for _, name in ipairs(requestWindows) do
      if units.requests and meters[name] then units[name] = units.requests end
    end
    for _, name in ipairs(meterNames) do
      if units[name] and units[name] > 0 then list[#list + 1] = { name, units[name] } end
    end
    return list
  end

  local function ageMember(name, known) return 'd:' .. sortable(known.at) .. ':' .. name end

  local function wakeWaiting(known)
    for _, key in ipairs(known.lanes) do
      local lane = laneOf(key)
      if lane then wake(lane, { 'document' }) end
    end
  end

  local function forgetDocument(name)
    local known = documentOf(name)
    if not known then return end
    drop(ageMember(name, known))
    discard('d', name)
    if known.kind == 'probing' then wakeWaiting(known) end
  end

  -- `known` is the record without `at`, which is added here.
  local function remember(name, known, now)
    local before = documentOf(name)
    if before then drop(ageMember(name, before)) end
    known.at = now
    keep('d', name, known)
    put(ageMember(name, known))
    if redis.call('ZLEXCOUNT', orderKey, '[d:', '(d;') > maxDocuments then
      local oldest = firstByTime('d')
      if oldest then forgetDocument(oldest) end
    end
  end

  -- True when the lane's next ticket has to wait for another call's response: its lane sleeps until then.
  function waitsForResponse(lane, ticket, now)
    local known = documentOf(ticket.document)
    if not known or known.kind ~= 'probing' or known.until <= now then return false end
    local isListed = false
    for _, key in ipairs(known.lanes) do isListed = isListed or key == lane.key end
    if not isListed then table.insert(known.lanes, lane.key) end
    sleep(lane, 'document', known.until)
    return true
  end

  -- A call was granted: the first of its document finds out for the others.
  function beginProbe(lease, now)
    local document = lease.document
    if not document or documentOf(document) then return end
    remember(document, { 'probing', false, lease.token, now + maxProbeMs, {} }, now)
  end

  -- What the lease's call went ahead to find out; nil = it did not.
  local function probeOf(lease)
    local known = documentOf(lease.document)
    return known and known.kind == 'probing' and known.lease == lease.token and known or nil
  end

  -- The lease ends: if its call went ahead, the others wait no longer.
  function endProbe(lease, now)
    local known = probeOf(lease)
    if not known then return end
    remember(lease.document, { 'unreported', false, false, false, {} }, now)
    wakeWaiting(known)
  end

  -- The lease ends and its call never reached the upstream: another one may find out.
  function dropProbe(lease)
    if probeOf(lease) then forgetDocument(lease.document) end
  end

  local function correctWaiting(document, points)
    local section = 'c:' .. document
    local members = redis.call('ZRANGEBYLEX', orderKey, '[' .. section .. ':', '(' .. section .. ';', 'LIMIT', 0, maxCorrected)
    for _, member in ipairs(members) do
      local ticket = ticketOf(string.sub(member, #section + 2))
      local lane = ticket and laneOf(ticket.lane)
      if lane then
        sumCosts(lane, ticket, -1)
        ticket.costs = cappedCosts(knownCosts(ticket.costs, document))
        sumCosts(lane, ticket, 1)
        forgetEstimate(ticket)
      end
    end
  end

  -- A response stated what the document costs.
  function learnDocument(document, points, now)
    if not document then return end
    local known = documentOf(document)
    remember(document, { 'reported', points, false, false, {} }, now)
    if known and known.kind == 'reported' then return end
    correctWaiting(document, points)
    if known and known.kind == 'probing' then wakeWaiting(known) end
  end
end
