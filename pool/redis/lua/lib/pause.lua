--[[
pause: what is paused in a lane is accepted, and not granted; see jobs/client/pausing.py.

Needs  lane; key lane.  Gives  HELD, PAUSED, pause_of(key, handler): `key`, `pool`, `handler`, or nil;
hold_back(unassigned, key): nil, or `again` (it stands behind now), or `last` (nobody in that line may go).

In the lane, where something is paused:

    paused          [p][N]|HANDLER|HANDLER|...    p: the whole pool; N: so many keys; then handlers, each with a bar behind it
    paused KEY      1, for each of these keys

What would be granted becomes unassigned: in a line of its handler's, in its place by acceptance.  One whose key is paused
stands there by HELD + acceptance instead, behind all others, so that nobody has to look past it; whoever meets one
in front puts it there, and `pause` puts it back when its key is resumed.  If what pauses a key was deleted by hand,
its job is only the last of its line.
]]
local HELD = 5e15 -- later than any stamp of this century; with one added still exact
local PAUSED = 'paused '

local function pause_of(key, handler)
  local all, keys = string.match(paused, '^(p?)(%d*)|')
  if not all then
    return nil -- of another hand
  elseif keys ~= '' and redis.call('HEXISTS', lane, PAUSED .. key) == 1 then
    return 'key'
  elseif all == 'p' then
    return 'pool'
  end
  return string.find(paused, '|' .. handler .. '|', 1, true) and 'handler' or nil
end

local function hold_back(unassigned, key)
  if pause_of(key, '\n') ~= 'key' then
    return nil
  end
  local stands = tonumber(redis.call('ZSCORE', unassigned, key))
  if stands >= HELD then
    return 'last'
  end
  redis.call('ZADD', unassigned, text_of(stands + HELD), key)
  return 'again'
end
