--[[
sink_mend: free what stale consumers hold and what nobody acknowledges; then forget the stale.

KEYS[1] state   hash    seen, quiet; holder: consumer|end; k:KEY for each stream of any consumer; c:KEY its cursor
KEYS[2] leases  zset    consumer -> lease end
KEYS[3] events  stream
KEYS[4] meta    hash    missed:GROUP, trimmed
KEYS[5] parked  stream  s stream, i id, d deliveries, r reason, and what the event had
KEYS[6] config  hash    ttl: the pool's
ARGV[1] group           bytes  the sink's name
ARGV[2] consumer        str    the caller
ARGV[3] grace_ms        int    how long an event may stay unacknowledged
ARGV[4] deliveries_max  int    > 0; after so many an event is parked instead
ARGV[5] batch           int    events looked at, at most
ARGV[6] stream          bytes  the stream's name, for what is parked

Uses     sink, quiet, group
Returns  freed, parked, consumers forgotten, events missed, 1 if there is more; all -1: the caller is not
         the one that cleans; all -2: there is no such group
Errors   WRONGTYPE  foreign data under one of the keys
Cost     O(consumers + pending + batch); 14 commands, 2 a consumer, 1 an event, 3 a parked one
Why Lua  claim first, delete after: a consumer is forgotten in the very step that sees it hold nothing.

Freed events go to RELEASED, from where whoever has room takes them: a cleaner that is slow, or dies
next, holds up nobody.  Stale is whoever has no lease, or one that has ended.  After a gap in which
nobody renewed, or a step of the clock, all times are worthless: nothing is stale for one TTL, and the
grace counts from then.
]]
if holder_of() ~= consumer then
  return { -1, -1, -1, -1, -1 }
end
redis.call('XLEN', parked)
redis.call('HLEN', meta)
local last = has_group(events)
if not last then
  redis.call('HDEL', state, 'k:' .. events) -- whoever reads it makes the group again, and says so
  return { -2, -2, -2, -2, -2 }
end
redis.call('ZREM', leases, '\n')
notice_gap()
-- Up to here all is acknowledged: from here a group goes on that somebody destroys.
local lowest = redis.call('XPENDING', events, group)[2]
if lowest then
  local ms, seq = string.match(lowest, '^(%d+)-(%d+)$')
  last = seq ~= '0' and ms .. '-' .. text_of(tonumber(seq) - 1) or text_of(tonumber(ms) - 1) .. '-18446744073709551615'
end
if redis.call('HGET', state, 'c:' .. events) ~= last then
  redis.call('HSET', state, 'c:' .. events, last)
end
if now < quiet then
  return { 0, 0, 0, 0, 0 }
end
local freed, parks, forgotten, left = 0, 0, 0, batch

local function park(id, deliveries, reason)
  local entry = redis.call('XRANGE', events, id, id)[1]
  if entry then
    redis.call('XADD', parked, '*', 's', stream, 'i', id, 'd', text_of(deliveries), 'r', reason, unpack(entry[2]))
    parks = parks + 1
  else
    note_gone(meta, id)
  end
  redis.call('XACK', events, group, id)
end

local function free(pending, reason)
  for _, each in ipairs(pending) do
    local id, deliveries = each[1], tonumber(each[4])
    if deliveries >= deliveries_max then
      park(id, deliveries, reason)
    elseif #redis.call('XCLAIM', events, group, RELEASED, 0, id, 'JUSTID') == 0 then
      note_gone(meta, id)
    else
      freed = freed + 1
    end
  end
  left = left - #pending
end

for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', events, group)) do
  local name
  for i = 1, #info, 2 do
    name = info[i] == 'name' and info[i + 1] or name
  end
  local ends = tonumber(redis.call('ZSCORE', leases, name) or '0')
  if left > 0 and name ~= RELEASED and ends <= now then
    redis.call('ZREM', leases, name)
    free(pending_of(events, name, left), 'its consumers ended')
    forgotten = forgotten + forget(events, name)
  end
end
if left > 0 and now >= quiet + grace_ms then
  local overdue = {}
  for _, each in ipairs(redis.call('XPENDING', events, group, 'IDLE', grace_ms, '-', '+', left)) do
    if each[2] ~= RELEASED then
      overdue[#overdue + 1] = each
    end
  end
  free(overdue, 'not acknowledged in time')
end
local missed = redis.call('HGET', meta, 'missed:' .. group)
if missed then
  redis.call('HDEL', meta, 'missed:' .. group)
end
return { freed, parks, forgotten, tonumber(missed or '0'), left <= 0 and 1 or 0 }
