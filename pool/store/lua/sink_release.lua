--[[
sink_release: give back events that were read and never in a program's hands.

KEYS[1] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[...] ids            of the events

Uses     group
Returns  how many were still the caller's
Errors   NOGROUP  there is no such group
Cost     O(ids); 2 commands each
Why Lua  an event that somebody took over meanwhile must not be taken from them.

This delivery is taken off the count: it was none.
]]
local released = 0
for i = 3, #ARGV do
  local mine = redis.call('XPENDING', events, group, ARGV[i], ARGV[i], 1, consumer)[1]
  if mine then
    local deliveries = math.max(tonumber(mine[4]) - 1, 0)
    redis.call('XCLAIM', events, group, RELEASED, 0, ARGV[i], 'RETRYCOUNT', deliveries, 'JUSTID')
    released = released + 1
  end
end
return released
