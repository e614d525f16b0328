-- The bucket scheduler: its files in the order in which Lua needs them. The loader (scripts.ts) builds two things from this source:
-- a function library, which Redis 7 loads once, and a script for older servers.
-- @constant replicaChannelPrefix

-- State of one run. `begin` (run.lua) sets all of it, because a function library outlives its runs.
local stateKey, recordsKey, orderKey, replicasKey
local bucketName, ownReplica
local bucket
-- By field of the records: the packed value as it was read (`false` = absent), and the value as it is now (`false` = deleted).
local asRead, current, waitingChange
-- The setting that was applied last, and whether the replica that asks has been noted as alive.
local appliedSetting, isHeard
-- Leases that replies to admissions name; whether a tick asks for unnamed grants, and their number; whether the bucket closed.
local reportedByReply, reportsUnnamed, unnamed, closes
-- The meters as they were read, in the order in which they are packed; nil = meters were added since.
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
-- @include described-windows
-- @include meter-bounds
-- @include meter-learning
-- @include waiting-costs
-- @include lanes
-- @include documents
-- @include first-calls
-- @include lessons
-- @include pump
-- @include forecast-others
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
-- @include wake
-- @include open
-- @include cancel
-- @include tick
-- @include forecast
-- @include apply
