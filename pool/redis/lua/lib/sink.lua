--[[
sink: the time of one sink on one stream.  Needs  group; keys state, config.

Gives  now, ttl_ms (the pool's, in ms), whole(text), go_on(), holder_of(), counted_behind(missed, number): how many of
       the events with a higher number were counted as missed (see stream_add), at least.

Its time goes on only while consumers renew: by what passed since the last renewal, and by a fifth of a TTL
where that was long ago, or the server's clock was set.  So no outage, no step of the clock and no time
without consumers ends a lease; nor does any of them keep one for ever.  It is not the lanes' lease clock (lib/lease):
a stream needs no pool, and no consumer says here since when it asked in vain.
]]
local sink_time = redis.call('TIME')
local clock = tonumber(sink_time[1]) * 1000 + math.floor(tonumber(sink_time[2]) / 1000)
local sink_had = redis.call('HMGET', state, 'now', 'seen', 'holder')

-- A number that we wrote; what somebody else put there counts as 0.
local function whole(text)
  return text and #text <= 16 and tonumber(string.match(text, '^%d+$')) or 0
end

local now, seen = whole(sink_had[1]), whole(sink_had[2])
local ttl_had = redis.call('HGET', config, 'ttl')
local ttl_ms = whole(ttl_had)
if ttl_ms < 1000 or ttl_ms > 3600000 then
  ttl_ms = 10000 -- streams need no pool
end

local function counted_behind(missed, number)
  local from, count = string.match(missed or '', '^%d+|(%d+)|(%d+)$')
  return from and math.max(0, whole(count) - math.max(0, number - whole(from) + 1)) or 0
end

-- What renewals do.
local function go_on()
  local passed = clock - seen
  now = now + ((passed < 0 or passed > ttl_ms / 2) and math.floor(ttl_ms / 5) or passed)
  redis.call('HSET', state, 'now', text_of(now), 'seen', text_of(clock))
end

-- Who cleans, if their time has not ended; one that ends later than a holder can ask for is not ours.
local function holder_of()
  local name, ends = string.match(sink_had[3] or '', '^(.*)|(%d+)$')
  ends = whole(ends)
  return ends > now and ends <= now + 2 * ttl_ms and name or nil
end
