--[[
sink: what a script that looks at the leases of a sink begins with.  Needs  keys state, leases, config.

Gives  now, ttl_ms (the pool's, in ms), whole(text), text_of(number), holder_of(); and the names under which quiet knows these keys.
]]
local sink_time = redis.call('TIME')
local now = tonumber(sink_time[1]) * 1000 + math.floor(tonumber(sink_time[2]) / 1000)
local lane, keepalive, journal = state, leases, nil

-- A number that we wrote; what somebody else put there counts as 0.
local function whole(text)
  return text and #text <= 16 and tonumber(string.match(text, '^%d+$')) or 0
end

local function text_of(number)
  return string.format('%.0f', number)
end

local ttl_had = redis.call('HGET', config, 'ttl')
local ttl_ms = whole(ttl_had)
if ttl_ms < 1000 or ttl_ms > 3600000 then
  ttl_ms = 10000 -- streams need no pool
end

-- Who cleans, if their time has not ended; one that ends later than a holder can ask for was written
-- before the server's clock went back.
local function holder_of()
  local name, ends = string.match(redis.call('HGET', state, 'holder') or '', '^(.*)|(%d+)$')
  ends = tonumber(ends or '0')
  return ends > now and ends <= now + 2 * ttl_ms and name or nil
end
