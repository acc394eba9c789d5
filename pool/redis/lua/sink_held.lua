--[[
sink_held: what waits under a consumer's name.

KEYS[1] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[3] after     str    an id, or '' for the first page
ARGV[4] count     int    ids, at most

Returns  ids of the consumer's pending events, in their order
Errors   NOGROUP  there is no such group
Cost     O(count); 1 command; writes nothing
Why Lua  its answer is read like any other's, and holds ids alone.
]]
local ids = {}
for i, each in ipairs(redis.call('XPENDING', events, group, after == '' and '-' or '(' .. after, '+', count, consumer)) do
  ids[i] = each[1]
end
return ids
