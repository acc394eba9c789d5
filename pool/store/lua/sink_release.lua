--[[
sink_release: give back events that were read and never in a program's hands.

KEYS[1] events  stream
KEYS[2] meta    hash    missed:GROUP, trimmed
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[...] ids            of the events

Uses     group
Returns  how many were still the caller's, and still there
Errors   NOGROUP  there is no such group
Cost     O(ids); 1 command, and 2 each
Why Lua  an event that somebody took over meanwhile must not be taken from them.

This delivery is taken off the count: it was none.
]]
redis.call('HLEN', meta)
local released = 0
for i = 3, #ARGV do
  local mine = redis.call('XPENDING', events, group, ARGV[i], ARGV[i], 1, consumer)[1]
  if mine then
    local deliveries = math.max(tonumber(mine[4]) - 1, 0)
    if #redis.call('XCLAIM', events, group, RELEASED, 0, ARGV[i], 'RETRYCOUNT', deliveries, 'JUSTID') > 0 then
      released = released + 1
    else
      note_gone(meta, ARGV[i])
    end
  end
end
return released
