-- The beginning of every run: nothing of an earlier one is left, not even of one that failed.
local function begin(keys, batch)
  bucketName, ownReplica = batch.bucket, batch.replica
  stateKey, recordsKey, orderKey, replicasKey = keys[1], keys[2], keys[3], keys[4]
  bucket, listedMeters = nil, nil
  asRead, current, waitingChange = {}, {}, {}
  readyMembers, idleMembers, heads = {}, {}, {}
  granted, nextAt, pumped = {}, nil, false
  earliest = {}
  appliedSetting, isHeard = nil, false
  reportedByReply, reportsUnnamed, unnamed, closes = {}, false, 0, false
end

-- The replica lives.
local function noteReplica(now)
  if isHeard then return end
  isHeard = true
  redis.call('ZADD', replicasKey, text(now), ownReplica)
end

-- Settings that hold already change nothing.
local function applySettingsOnce(setting, now)
  if appliedSetting == setting then return end
  appliedSetting = setting
  applySettings(setting, now)
end
