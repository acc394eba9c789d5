--[[
sink_ack: acknowledge events, each for somebody who wants to know of that one.

KEYS[1] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str    who most of them were given to
ARGV[...] items          the events as lib/same names them; none twice

Uses     same
Returns  per event 1, or 0: it was acknowledged before, or never given, or another event has its id
Errors   WRONGTYPE  foreign data under the key
Cost     O(items); 1 command for one event, 2 for several, 1 for each that the consumer does not hold, and 1 for each mark
Why Lua  XACK says how many it was, and not which, and does not look at what the event is.
]]
local mine, rest, answer = {}, {}, {}
local count = #ARGV - 2
if count > 1 then
  -- What a consumer holds and somebody acknowledges is mostly among the oldest: no more is looked at.
  local held = redis.pcall('XPENDING', events, group, '-', '+', 2 * count, consumer)
  for _, each in ipairs(held.err and {} or held) do
    mine[each[1]] = true
  end
end
for i = 1, count do
  local id, mark = named(ARGV[i + 2])
  if not is_same(events, id, mark) then
    answer[i] = 0
  elseif mine[id] then
    rest[#rest + 1] = id
    answer[i] = 1
  else
    answer[i] = redis.call('XACK', events, group, id)
  end
end
if #rest > 0 then
  redis.call('XACK', events, group, unpack(rest))
end
return answer
