--[[
sink_join: give a consumer its lease, and make the groups that are missing.

KEYS[1] state   hash  seen, quiet; holder: consumer|end; k:KEY for each stream of any consumer; c:KEY its cursor
KEYS[2] leases  zset  consumer -> lease end
KEYS[3] config  hash  ttl: the pool's; written if it has none
KEYS[...] streams     events, per stream of the consumer
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[3] before    str    the name that it had until now, whose lease ends; '' none
ARGV[4] named_ms  int    TTL that the caller's settings name; 0: none
ARGV[...] starts         per stream: where a group that is missing begins, if none is known: an id, or newest

Uses     sink, quiet, group
Returns  per stream 1 if its group was made, else 0
Errors   WRONGTYPE  foreign data under one of the keys
Cost     O(streams); 5 commands, and up to 7 per stream
Why Lua  the lease is there before the first read, or a cleaner would take the consumer for a stale one.

The one place where a group may begin at the newest event: only its very first consumer asks for that.
One that was destroyed goes on from its cursor: whoever cleans notes up to where all is acknowledged.  A
stream that has not come as far was made anew, and is read from where the caller says.
Doing it again is fine: it renews.
]]
local function comes_to(events, cursor)
  local newest = redis.call('EXISTS', events) == 1 and redis.call('XINFO', 'STREAM', events) or {}
  for i = 1, #newest, 2 do
    if newest[i] == 'last-generated-id' then
      local ms, seq = string.match(newest[i + 1], '^(%d+)-(%d+)$')
      local past_ms, past_seq = string.match(cursor, '^(%d+)-(%d+)$')
      ms, seq, past_ms, past_seq = tonumber(ms), tonumber(seq), tonumber(past_ms), tonumber(past_seq)
      return past_ms and (ms > past_ms or (ms == past_ms and seq >= past_seq))
    end
  end
end
local was_there = {}
for i = 4, #KEYS do
  was_there[i] = has_group(KEYS[i])
end
redis.call('ZREM', leases, before == '' and '\n' or before)
if named_ms > 0 and not ttl_had then
  redis.call('HSET', config, 'ttl', text_of(named_ms)) -- a sink needs no pool
  ttl_ms = named_ms
end
notice_gap()
redis.call('ZADD', leases, now + ttl_ms, consumer)
local made = {}
for i = 4, #KEYS do
  if not was_there[i] then
    local start, cursor = ARGV[i + 1], redis.call('HGET', state, 'c:' .. KEYS[i])
    if cursor and comes_to(KEYS[i], cursor) then
      start = cursor
    end
    redis.call('XGROUP', 'CREATE', KEYS[i], group, start == 'newest' and '$' or start, 'MKSTREAM')
  end
  redis.call('XGROUP', 'CREATECONSUMER', KEYS[i], group, consumer)
  redis.call('HSET', state, 'k:' .. KEYS[i], '1') -- whoever cleans, cleans there too
  made[#made + 1] = was_there[i] and 0 or 1
end
return made
