--[[
sink_leave: end a consumer's lease, and forget it where it holds nothing.

KEYS[1] state   hash  holder: consumer|end
KEYS[2] leases  zset  consumer -> lease end
KEYS[...] streams     events, per stream that it read
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str

Uses     group
Returns  how many streams still have it: it holds unacknowledged events there, which the next cleaner frees
Cost     O(streams); 2 commands, and 4 per stream
Why Lua  it is forgotten in the very step that sees it hold nothing.
]]
local there = {}
for i = 3, #KEYS do
  there[i] = has_group(KEYS[i])
end
local is_holder = string.sub(redis.call('HGET', state, 'holder') or '', 1, #consumer + 1) == consumer .. '|'
redis.call('ZREM', leases, consumer)
if is_holder then
  redis.call('HDEL', state, 'holder')
end
local left = 0
for i = 3, #KEYS do
  if there[i] and forget(KEYS[i], consumer) == 0 then
    left = left + 1
  end
end
return left
