-- Once a second per replica and active bucket, and whenever the time named by a reply has come: the replica lives, its
-- leases go on, and what is due is granted. Mirror of `tick` in scheduler.policy.ts, and of dead-replicas.policy.ts.
-- Guarantees: grants whose reply or message was lost are reported again, until the replica names their lease here or in any
-- other event; a bucket that Redis does not know is not created (the replica enters its tickets again).
-- Event { leases: those held, at most 64 }
-- Reply ["ticked", tickets of this replica that wait, [[meter, limit, level, window ms]], [leases that it does not have]]
--   | ["unknown_bucket"]
do
  -- @constant leasesPerTick

  -- Returns those that are not here.
  local function renewLeases(held, now)
    local missing = {}
    for _, token in ipairs(held) do
      local lease = leaseOf(token)
      if lease and lease.stage ~= 'abandoned' and lease.replica == ownReplica then
        noteNamed(lease)
        local ticket = ticketOf(lease.ticket)
        expireAt(lease, now + ticket.leaseMs)
      else
        missing[#missing + 1] = '"' .. token .. '"'
      end
    end
    return missing
  end

  local function waitingOf(replica)
    return (tonumber(redis.call('HGET', recordsKey, 'w:' .. replica)) or 0) + (waitingChange[replica] or 0)
  end

  -- If calls waited on one of them, a search for their tickets begins, which would count as calls that go first.
  local function forgetDeadReplicas(now)
    for _ = 1, maxPerPump do
      local first = redis.call('ZRANGE', replicasKey, 0, 0, 'WITHSCORES')
      if not first[1] or tonumber(first[2]) + replicaLifeMs >= now then return end
      redis.call('ZREM', replicasKey, first[1])
      if waitingOf(first[1]) > 0 then bucket.searchedTo = '' end
    end
  end

  -- Goes on with the search behind the member of the lines that it saw last, which is kept without its section.
  local function forgetTheirTickets(now)
    if not bucket.searchedTo then return end
    local members = redis.call('ZRANGEBYLEX', orderKey, '(l:' .. bucket.searchedTo, '(l;', 'LIMIT', 0, maxPerPump)
    local alive = {}
    for _, member in ipairs(members) do
      local ticket = ticketOf(string.match(member, '[^:]+$'))
      local replica = ticket.replica
      if alive[replica] == nil then alive[replica] = isAlive(replica, now) or false end
      if not alive[replica] then
        dequeue(laneOf(ticket.lane), ticket)
        discard('t', ticket.id)
      end
    end
    bucket.searchedTo = #members == maxPerPump and string.sub(members[maxPerPump], 3)
  end

  -- As of now, without moving the meters themselves.
  local function meterJson(now)
    local levels = {}
    for _, name in ipairs(meterNames) do
      local meter = bucket.meters[name]
      if meter and meter.limit then
        local level = levelAt(meter, now)
        levels[#levels + 1] = '["' .. name .. '",' .. text(meter.limit) .. ',' .. text(level) .. ',' .. text(meter.windowMs) .. ']'
      end
    end
    return '[' .. table.concat(levels, ',') .. ']'
  end

  function checks.tick(event)
    if #list(event.leases, 'leases') > leasesPerTick then invalid('leases') end
    for _, token in ipairs(event.leases) do identifier(token, 'leases') end
  end

  function events.tick(event, now)
    noteReplica(now)
    local missing = renewLeases(event.leases, now)
    forgetDeadReplicas(now)
    forgetTheirTickets(now)
    refreshIdleness()
    forgetIdleLanes(maxPerPump)
    pump(now)
    reportsUnnamed = true
    unnamed = redis.call('ZLEXCOUNT', orderKey, '[u:' .. ownReplica .. ':', '(u:' .. ownReplica .. ';')
    return '["ticked",' .. text(waitingOf(ownReplica)) .. ',' .. meterJson(now) .. ',['
      .. table.concat(missing, ',') .. ']]'
  end
end
