--[[
sink_ack: acknowledge events, each for somebody who wants to know of that one.

KEYS[1] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str    who most of them were given to
ARGV[...] ids            of the events, none twice

Returns  per event 1, or 0: it was acknowledged before, or never given
Errors   WRONGTYPE  foreign data under the key
Cost     O(ids); 1 command for one event, 2 for several, and 1 for each that the consumer does not hold
Why Lua  XACK says how many it was, and not which.
]]
local ids, mine, rest, answer = { unpack(ARGV, 3) }, {}, {}, {}
if #ids > 1 then
  -- What a consumer holds and somebody acknowledges is mostly among the oldest: no more is looked at.
  local held = redis.pcall('XPENDING', events, group, '-', '+', 2 * #ids, consumer)
  for _, each in ipairs(held.err and {} or held) do
    mine[each[1]] = true
  end
end
for i, id in ipairs(ids) do
  if mine[id] then
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
