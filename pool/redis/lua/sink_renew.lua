--[[
sink_renew: give a consumer more time; say whether it is the one that cleans, and what waits for anybody.

KEYS[1] state   hash    now, seen; holder: consumer|end
KEYS[2] leases  zset    consumer -> lease end, in the sink's time
KEYS[3] config  hash    ttl: the pool's
KEYS[4] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str

Uses     group, sink
Returns  1 if the caller cleans, else 0; granted TTL (ms); how many released events wait, -1: no group;
         how many doubtful ones
Errors   POOLGONE <consumer>  it has no lease: others took over what it held
Cost     O(consumers); 10 commands
Why Lua  a renewal that raced with a cleaner would otherwise revive whom it has just cleaned.
]]
if not redis.call('ZSCORE', leases, consumer) then
  return redis.error_reply('POOLGONE ' .. consumer)
end
local released, doubtful = -1, 0
if has_group(events) then
  released = 0
  for _, each in ipairs(redis.call('XPENDING', events, group)[4] or {}) do
    released = each[1] == RELEASED and tonumber(each[2]) or released
    doubtful = each[1] == DOUBTFUL and tonumber(each[2]) or doubtful
  end
end
redis.call('ZREM', leases, '\n') -- a write: a full server checks memory at the first one only
go_on()
redis.call('ZADD', leases, now + ttl_ms, consumer)
local holder = holder_of()
if holder and holder ~= consumer then
  return { 0, ttl_ms, released, doubtful }
end
redis.call('HSET', state, 'holder', consumer .. '|' .. text_of(now + ttl_ms))
return { 1, ttl_ms, released, doubtful }
