--[[
join: register a node and its workers in a lane.

KEYS[1] lane       hash    stamp, counters, incarnation, ttl, term, seen, lease, paced
KEYS[2] keepalive  zset    identity -> lease end, in lease time
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    id -> number|takes|seq[|ails]
KEYS[5] handlers   hash    name -> options
KEYS[...] signals          signal:IDENTITY, one per identity that joins, then the node's own
ARGV[1] generation    str   the pool's
ARGV[2] known          str   generation of the lane, as the caller knows it; empty: whichever it has
ARGV[3] stale          str   the one that it may have though `config` names our pool; empty: none
ARGV[4] not_after_ms   int   TIME in ms after which this call no longer counts
ARGV[5] pool_ttl_ms    int   > 0; as `config` has it, for a lane that has none yet
ARGV[6] node           str   identity of the node
ARGV[7] paused         str   what is paused here, for a lane that is made by this: as lib/pause has it, and then its keys,
                             each behind a newline; empty: nothing is
ARGV[8] floor          int   no epoch of the lane that the caller has seen, here or before its data were lost, is higher
ARGV[9] identity_count int   how many; (id, number, takes) each follow: takes -1 for a
                             node, 0 for a worker that takes nothing yet
ARGV[...] handlers     name, options each

Returns  pool ms, granted TTL (ms), its term, generation of the lane, its clock (as renew)
Errors   POOLDATALOST <lane>, POOLGONE <identity> (fenced, or the call came too late)
Cost     O(identities + handlers); 4 commands an identity
Why Lua  a late copy of this call must not bring back an identity that was reaped meanwhile, nor open a
         worker again that has closed itself.

A lane has a generation of its own, <the pool's>.<when>, drawn by the first to join it.  One that lost its
data is given another, so that whoever joined it before hears of that, and nobody in other lanes does.  Its time
begins with what its server says then.  Its stamps, and with them its epochs, begin above `floor`: pool time may have
been ahead of the server's clock before the loss, and whoever fences by epoch refuses a lower one.  Each joiner raises
the stamp to its own floor, so the first one does not have to know most; renewals repeat it.  What is paused is so from the first moment: nothing can be granted before.

Who joins a node that has not heard yet of a shorter TTL gets as long a lease as the node has, since the
node believes in one lease for all that it has in the lane.

`stale` is for a lane that was joined anew by a node which did not know yet that the data had been lost:
`config` decides, and the lane keeps what it holds.
]]
local function whole(text)
  return text and #text <= 16 and tonumber(string.match(text, '^%d+$')) or 0
end
local function text_of(number)
  return string.format('%.0f', number)
end
local lane_had = redis.call('HMGET', lane, 'incarnation', 'ttl', 'term', 'offset', 'turn', 'seen', 'stamp', 'lease', 'paced')
local had, ttl_ms, term = lane_had[1], whole(lane_had[2]), whole(lane_had[3])
local is_new = not had or string.match(had, '^(.*)%.%d+$') ~= generation
if (known ~= '' and had ~= known) or (had and is_new and had ~= stale) then
  return redis.error_reply('POOLDATALOST ' .. lane)
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local first = ARGV[10] .. '.' .. ARGV[11]
if now > not_after_ms then
  return redis.error_reply('POOLGONE ' .. first)
end
-- Pool time, as in lib/lane.
local offset = lane_had[4] and #lane_had[4] <= 14 and tonumber(string.match(lane_had[4], '^-?%d+$')) or 0
local seen, raw = whole(lane_had[6]), now + offset
local paced_ms = whole(lane_had[9] or lane_had[2])
local period_ms = math.floor(math.min(paced_ms >= 1000 and paced_ms / 5 or 2000, 10000))
seen = seen <= 9e12 and seen or 0
now = seen > 0 and math.max(seen, math.min(raw, seen + 2 * period_ms)) or raw
-- Lease time, as in lib/lease; while nobody vouches for raw, as in lib/clock.
local lease = whole(lane_had[8])
lease = lease <= 9e12 and lease or 0
local lease_now = lease > 0 and lease + (now ~= raw and 2 * period_ms or math.min(math.max(0, now - seen), math.floor(1.75 * period_ms))) or now
redis.call('ZCARD', keepalive)
redis.call('HLEN', open)
redis.call('HLEN', handlers)
for i = 6, #KEYS do
  redis.call('XLEN', KEYS[i])
end
for i = 1, identity_count do
  local name = ARGV[7 + 3 * i] .. '.' .. ARGV[8 + 3 * i]
  if redis.call('HEXISTS', cleanup, name) == 1 then
    return redis.error_reply('POOLGONE ' .. name)
  end
end

redis.call('ZREM', keepalive, '\n') -- on a full server too: who joins it drains it
if is_new then
  had = generation .. '.' .. time[1] .. string.format('%06d', tonumber(time[2]))
  redis.call('HSET', lane, 'incarnation', had)
  if paused ~= '' then
    redis.call('HSET', lane, 'paused', string.match(paused, '^[^\n]*'))
    for key in string.gmatch(paused, '\n([^\n]+)') do
      redis.call('HSET', lane, 'paused ' .. key, '1')
    end
  end
  if seen == 0 then
    redis.call('HSET', lane, 'seen', text_of(now)) -- the first witness of its clock
  end
  if lease == 0 then
    -- The lease clock begins, by the server that answers its first renewals (see lib/silence).
    local info = redis.pcall('INFO', 'SERVER')
    local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
    redis.call('HSET', lane, 'lease', text_of(now), 'run', run)
  end
end
local STAMP_MAX = 9e15 -- as in lib/lane
local stamp_had = whole(lane_had[7])
if floor <= STAMP_MAX and (stamp_had > STAMP_MAX or stamp_had < floor) then
  redis.call('HSET', lane, 'stamp', text_of(floor))
end
if ttl_ms < 1000 or ttl_ms > 3600000 then
  ttl_ms, term = pool_ttl_ms, math.max(term + 1, now)
  redis.call('HSET', lane, 'ttl', text_of(ttl_ms), 'term', text_of(term))
end
local ends = lease_now + ttl_ms
if redis.call('HEXISTS', cleanup, node) == 0 then
  ends = math.max(ends, tonumber(redis.call('ZSCORE', keepalive, node) or '0'))
end
for i = 1, identity_count do
  local id, n, takes = ARGV[7 + 3 * i], ARGV[8 + 3 * i], ARGV[9 + 3 * i]
  redis.call('XADD', KEYS[5 + i], '*', 't', 'joined')
  local is_first = redis.call('ZADD', keepalive, 'GT', ends, id .. '.' .. n) == 1
  if is_first and tonumber(takes) > 0 then
    redis.call('HSET', open, id, n .. '|' .. takes .. '|0')
  end
end
-- The blocked read of the node wakes and takes up the new streams.
redis.call('XADD', KEYS[#KEYS], 'NOMKSTREAM', '*', 't', 'joined')
for i = 10 + 3 * identity_count, #ARGV, 2 do
  redis.call('HSET', handlers, ARGV[i], ARGV[i + 1])
end
return { now, ttl_ms, text_of(term), had, text_of(raw - now) .. '|' .. text_of(offset) .. '|' .. text_of(whole(lane_had[5])) }
