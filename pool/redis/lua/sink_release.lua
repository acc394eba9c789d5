--[[
sink_release: give back events that are not in a program's hands, or were for longer than they may.

KEYS[1] events  stream
KEYS[2] meta    hash    missed:GROUP, trimmed
KEYS[3] parked  stream  s stream, i id, d times handed out, r reason, and what the event had
ARGV[1] group           bytes  the sink's name
ARGV[2] consumer        str
ARGV[3] deliveries_max  int    > 0; after so many hand-outs an event is parked instead
ARGV[4] stream          bytes  the stream's name, for what is parked
ARGV[5] doubtful        int    1: what its last holder died of, maybe, and nobody has tried since
ARGV[...] items                the events as lib/same names them

Uses     group, same, park
Returns  how many were still the caller's and still there, and wait for others; how many were parked
Errors   NOGROUP    there is no such group
         WRONGTYPE  foreign data under one of the keys
Cost     O(items); 2 commands, 3 each, and 4 for one that is parked
Why Lua  an event that somebody took over meanwhile must not be taken from them.

That it was given to this consumer counts no more: only what it handed out does.
]]
redis.call('HLEN', meta)
redis.call('XLEN', parked)
local released, parks = 0, 0
for i = 6, #ARGV do
  local id, mark = named(ARGV[i])
  local mine = redis.call('XPENDING', events, group, id, id, 1, consumer)[1]
  if mine and is_same(events, id, mark) then
    local times = handed(mine[4])
    if times >= deliveries_max then
      parks = parks + (park(events, meta, parked, stream, id, mine[4], 'not acknowledged in time') and 1 or 0)
    elseif put(events, meta, id, doubtful > 0 and DOUBTFUL or RELEASED, times * 1000 + (doubtful > 0 and 1 or 0)) then
      released = released + 1
    end
  end
end
return { released, parks }
