--[[
sink_leave: end a consumer's lease, and forget it if it holds nothing.

KEYS[1] state   hash    holder: consumer|end
KEYS[2] leases  zset    consumer -> lease end, in the sink's time
KEYS[3] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str

Uses     group
Returns  1 if it holds unacknowledged events, which the next cleaner frees; else 0
Cost     O(1); 6 commands
Why Lua  it is forgotten in the very step that sees it hold nothing.
]]
local is_there = has_group(events)
local is_holder = string.sub(redis.call('HGET', state, 'holder') or '', 1, #consumer + 1) == consumer .. '|'
redis.call('ZREM', leases, consumer)
if is_holder then
  redis.call('HDEL', state, 'holder')
end
return is_there and forget(events, consumer) == 0 and 1 or 0
