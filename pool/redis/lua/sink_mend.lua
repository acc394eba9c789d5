--[[
sink_mend: free what stale consumers hold; then forget them.

KEYS[1] state   hash    now, seen; holder: consumer|end; cursor, and what was there: number of the event, 0 unknown; born
KEYS[2] leases  zset    consumer -> lease end, in the sink's time
KEYS[3] events  stream
KEYS[4] meta    hash    missed:GROUP: of which all are events ever taken by a cap, see stream_add, parks:GROUP: events ever parked; told:GROUP, of the
                        ones, and parks-told:GROUP, of the others: how many were told; trimmed
KEYS[5] parked  stream  s stream, i id, d times handed out, r reason, and what the event had
KEYS[6] config  hash    ttl: the pool's
ARGV[1] group           bytes  the sink's name
ARGV[2] consumer        str    the caller
ARGV[3] deliveries_max  int    > 0; after so many hand-outs an event is parked instead
ARGV[4] batch           int    events looked at, at most
ARGV[5] stream          bytes  the stream's name, for what is parked
ARGV[6] told            int    how many missed events the caller knows of, and has told
ARGV[7] parks_told      int    likewise of parked ones
ARGV[8] of_life         bytes  of which life of the stream it knows that (born); of another one it tells nothing

Uses     group, sink, park
Returns  freed, parked, consumers forgotten, events ever missed, how many of those were told, events ever
         parked, how many of those were told, 1 if there is more, which life it is; all -1: the caller is not the one that cleans; all -2: there is no such group
Errors   WRONGTYPE  foreign data under one of the keys
Cost     O(consumers + batch); 17 commands, 2 a consumer, 1 an event, 5 a parked one
Why Lua  claim first, delete after: a consumer is forgotten in the very step that sees it hold nothing.

Freed events go to DOUBTFUL, from where whoever has room takes them one at a time: a cleaner that is slow, or
dies next, holds up nobody.  Stale is whoever has no lease, or one that has ended.  What the living hold is
theirs to give back.
]]
if holder_of() ~= consumer then
  return { -1, -1, -1, -1, -1, -1, -1, -1, '' }
end
redis.call('XLEN', parked)
redis.call('ZCARD', leases)
local known = redis.call('HMGET', meta, 'missed:' .. group, 'told:' .. group, 'born', 'parks-told:' .. group)
local last = has_group(events)
if not last then
  return { -2, -2, -2, -2, -2, -2, -2, -2, '' }
end
redis.call('ZREM', leases, '\n') -- a write: a full server checks memory at the first one only
-- Up to here all is acknowledged: from here a group goes on that somebody destroys.
local lowest = redis.call('XPENDING', events, group)[2]
local number = number_at(events, lowest or last)
if lowest then
  number = math.max(0, number - 1)
  local ms, seq = string.match(lowest, '^(%d+)-(%d+)$')
  last = seq ~= '0' and ms .. '-' .. text_of(tonumber(seq) - 1) or text_of(tonumber(ms) - 1) .. '-18446744073709551615'
end
local noted = redis.call('HMGET', state, 'cursor', 'number', 'born')
if number == 0 and noted[3] == (known[3] or '') then
  number = whole(noted[2]) -- a cap took its event: it is that one's or a higher one
end
if noted[1] ~= last then
  redis.call('HSET', state, 'cursor', last, 'number', text_of(number), 'born', known[3] or '')
  local from = string.match(known[1] or '', '^%d+|(%d+)|')
  if from and number >= whole(from) then
    local words = { text_of(number_of(known[1])), text_of(number + 1), text_of(counted_behind(known[1], number)) }
    redis.call('HSET', meta, 'missed:' .. group, table.concat(words, '|'))
  end
end
local freed, parks, forgotten, left = 0, 0, 0, batch
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', events, group)) do
  local name
  for i = 1, #info, 2 do
    name = info[i] == 'name' and info[i + 1] or name
  end
  local is_stale = name ~= RELEASED and name ~= DOUBTFUL and tonumber(redis.call('ZSCORE', leases, name) or '0') <= now
  if left > 0 and is_stale then
    redis.call('ZREM', leases, name)
    for _, each in ipairs(pending_of(events, name, left)) do
      left = left - 1
      if handed(each[4]) >= deliveries_max then
        parks = parks + (park(events, meta, parked, stream, each[1], each[4], 'its consumers ended') and 1 or 0)
      elseif put(events, meta, each[1], DOUBTFUL, each[4]) then
        freed = freed + 1
      end
    end
    forgotten = forgotten + forget(events, name)
  end
end
local born = known[3] or ''
-- Who asks has told so many.
local function confirm(field, had, by)
  by = of_life == born and by or 0
  local most = math.max(whole(had), by)
  if most > whole(had) then
    redis.call('HSET', meta, field .. ':' .. group, text_of(most))
  end
  return most
end
told = confirm('told', known[2], told)
parks_told = confirm('parks-told', known[4], parks_told)
local ever = redis.call('HMGET', meta, 'missed:' .. group, 'parks:' .. group)
local missed, parked_ever = number_of(ever[1]), whole(ever[2])
return { freed, parks, forgotten, missed, math.min(missed, told), parked_ever, math.min(parked_ever, parks_told), left <= 0 and 1 or 0, born }
