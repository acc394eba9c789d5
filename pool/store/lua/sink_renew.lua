--[[
sink_renew: give a consumer more time; say whether it is the one that cleans, and what waits for anybody.

KEYS[1] state   hash  seen, quiet; holder: consumer|end; k:KEY for each stream of any consumer
KEYS[2] leases  zset  consumer -> lease end
KEYS[3] config  hash  ttl: the pool's
KEYS[...] streams     events, per stream of the consumer
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str

Uses     sink, quiet, group
Returns  1 if the caller cleans, else 0; granted TTL (ms); for the one that cleans, the keys of all streams that
         consumers of this sink ever read; then per stream how many released events wait, -1: no group
Errors   POOLGONE <consumer>  it has no lease: others took over what it held
Cost     O(streams * consumers); 8 commands, and 3 per stream
Why Lua  a renewal that raced with a cleaner would otherwise revive whom it has just cleaned.
]]
if not redis.call('ZSCORE', leases, consumer) then
  return redis.error_reply('POOLGONE ' .. consumer)
end
local answer, keys = { 0, ttl_ms, {} }, {}
for i = 4, #KEYS do
  local waiting = -1
  if has_group(KEYS[i]) then
    waiting = 0
    for _, each in ipairs(redis.call('XPENDING', KEYS[i], group)[4] or {}) do
      if each[1] == RELEASED then
        waiting = tonumber(each[2])
      end
    end
  end
  answer[#answer + 1] = waiting
end
redis.call('ZREM', leases, '\n')
notice_gap()
redis.call('ZADD', leases, now + ttl_ms, consumer)
local holder = holder_of()
if not holder or holder == consumer then
  redis.call('HSET', state, 'holder', consumer .. '|' .. text_of(now + ttl_ms))
  answer[1] = 1
  for _, field in ipairs(redis.call('HKEYS', state)) do
    keys[#keys + 1] = string.match(field, '^k:(.*)$')
  end
  answer[3] = keys
end
return answer
