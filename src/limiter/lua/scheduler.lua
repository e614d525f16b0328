-- Everything a transition of the bucket scheduler is made of, in the order in which Lua needs it.
local replicaChannel = 'sluice:r:'
-- @include sorted
-- @include bucket-state
-- @include meter
-- @include lanes
-- @include lessons
-- @include pump
-- @include forecast-at
-- @include reply
