-- The bucket scheduler, in the order in which Lua needs it. Two things are made of this one source (scripts.ts): a function
-- library, which a server of Redis 7 loads once, and a script for older servers.
-- @constant replicaChannelPrefix

-- What a run works on; `begin` (run.lua) sets it anew, because a function library outlives its runs.
local stateKey, recordsKey, orderKey, replicasKey
local bucketName, ownReplica
local bucket
-- By field of the records: packed as read (`false` = not there), and as it is now (`false` = gone).
local asRead, current, waitingChange
-- The setting that was applied last, and whether the replica that asks has been noted as alive.
local appliedSetting, isHeard
-- Leases that replies to admissions name; with a tick, grants that the replica has not named; whether the bucket closed.
local reportedByReply, reportsUnnamed, unnamed, closes
-- The meters as the bucket was read, in the order in which they are packed; nil = there are others now.
local listedMeters
-- Earliest time in a section of the order, as far as this run knows: nil = unknown, false = the section is empty.
local earliest
-- By kind: applies an event, and returns the reply to it as JSON.
local events = {}

-- @include batch
-- @include sorted
-- @include bucket-state
-- @include meter-others
-- @include window-log
-- @include meter
-- @include meter-quota
-- @include meter-bounds
-- @include meter-learning
-- @include waiting-costs
-- @include lanes
-- @include documents
-- @include first-calls
-- @include lessons
-- @include pump
-- @include forecast-at
-- @include waker
-- @include save
-- @include reply
-- @include run
-- @include admit
-- @include settle
-- @include learn
-- @include charge
-- @include reconfigure
-- @include open
-- @include cancel
-- @include tick
-- @include forecast
-- @include apply
