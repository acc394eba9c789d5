--[[
sink_join: give a consumer its lease, and make the group if it is missing.

KEYS[1] state   hash    now, seen; holder: consumer|end; cursor: up to where all is acknowledged
KEYS[2] leases  zset    consumer -> lease end, in the sink's time
KEYS[3] config  hash    ttl: the pool's; written if it has none
KEYS[4] events  stream
KEYS[5] meta    hash    of the stream; one that is made anew begins without
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[3] before    str    the name that it had until now, whose lease ends; '' none
ARGV[4] named_ms  int    TTL that the caller's settings name; 0: none
ARGV[5] start     str    where a group that is missing begins, if no cursor is known: an id, or newest

Uses     group, sink, ends
Returns  0: the group was there; 1: it was made; 2: it was, and the stream had come to its end as was asked for
Errors   WRONGTYPE  foreign data under one of the keys
Cost     O(1); 10 commands, and 7 at most where the group is made
Why Lua  the lease is there before the first read, or a cleaner would take the consumer for a stale one.

The one place where a group may begin at the newest event: only its very first consumer asks for that.
One that was destroyed goes on from its cursor: whoever cleans notes up to where all is acknowledged.  A
stream that has not come as far was made anew, and is read from where the caller says.
Doing it again is fine: it renews.
]]
local function comes_to(cursor)
  local newest = redis.call('EXISTS', events) == 1 and redis.call('XINFO', 'STREAM', events) or {}
  for i = 1, #newest, 2 do
    if newest[i] == 'last-generated-id' then
      local ms, seq = string.match(newest[i + 1], '^(%d+)-(%d+)$')
      local past_ms, past_seq = string.match(cursor or '', '^(%d+)-(%d+)$')
      ms, seq, past_ms, past_seq = tonumber(ms), tonumber(seq), tonumber(past_ms), tonumber(past_seq)
      return past_ms and (ms > past_ms or (ms == past_ms and seq >= past_seq))
    end
  end
end
redis.call('HLEN', meta)
local was_there = has_group(events)
redis.call('ZREM', leases, before == '' and '\n' or before)
if named_ms > 0 and not ttl_had then
  redis.call('HSET', config, 'ttl', text_of(named_ms)) -- a sink needs no pool
  ttl_ms = named_ms
end
go_on()
redis.call('ZADD', leases, now + ttl_ms, consumer)
local made = was_there and 0 or 1
if not was_there then
  if redis.call('EXISTS', events) == 0 then
    begin(meta) -- its events are counted from 1: that tells readers
  end
  local was, is = redis.call('HMGET', state, 'cursor', 'number', 'born'), redis.call('HMGET', meta, 'born', 'planned', 'trimmed', 'missed:' .. group)
  local is_same = was[3] == (is[1] or '') and comes_to(was[1])
  if is_same then
    start = was[1]
  elseif was[1] and is[2] == '1' then
    made = 2
  end
  -- What a cap took while there was no group to count it for: at most so many, where it took the event of the cursor too.
  -- What was counted already is not counted again.
  local first = was[1] and is[3] and number_at(events, '-', '+') or 0
  local behind = is_same and whole(was[2]) or 0
  local counted = counted_behind(is[4], behind)
  if first > behind + 1 and (not is_same or is_trimmed(meta, next_id(start))) then
    local all = number_of(is[4]) + math.max(0, first - 1 - behind - counted)
    local words = { text_of(all), text_of(behind + 1), text_of(first - 1 - behind) }
    redis.call('HSET', meta, 'missed:' .. group, table.concat(words, '|'))
  end
  redis.call('XGROUP', 'CREATE', events, group, start == 'newest' and '$' or start, 'MKSTREAM')
end
redis.call('XGROUP', 'CREATECONSUMER', events, group, consumer)
return made
