--[[
sink_drop: forget events that a sink has given up.

KEYS[1] parked  stream  s stream, i id, d times handed out, r reason, and what the event had
ARGV[...] items         per event two: its entry among the parked, and how lib/same names it

Uses     same
Returns  how many were still there; another event under the same entry stays
Errors   WRONGTYPE  foreign data under the key
Cost     O(items); 3 commands each
Why Lua  a server that lost data may give the id of an entry to another event, which must not be dropped for it.
]]
local dropped = 0
for i = 1, #ARGV, 2 do
  local id, mark = named(ARGV[i + 1])
  local entry = redis.call('XRANGE', parked, ARGV[i], ARGV[i])[1]
  if entry and entry[2][4] == id and is_same(parked, ARGV[i], mark) then
    dropped = dropped + redis.call('XDEL', parked, ARGV[i])
  end
end
return dropped
