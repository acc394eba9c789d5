--[[
quiet: notice that nobody could renew, or that the server's clock went back; only renewals and takeovers do.

Needs  lane; keys keepalive, journal (or nil); argument ttl_ms.  Gives quiet (ms until which nobody is fenced).
Otherwise one outage longer than the TTL, or one clock step, would evict the whole fleet.
]]
local quiet_had = redis.call('HMGET', lane, 'seen', 'quiet', 'ttl')
local seen, quiet = tonumber(quiet_had[1] or '0'), tonumber(quiet_had[2] or '0')
local ttl_max = math.max(tonumber(quiet_had[3] or '0'), ttl_ms)

local function notice_gap()
  if seen > 0 and (now - seen > ttl_ms / 2 or now < seen) then
    quiet = now + ttl_max
    redis.call('HSET', lane, 'quiet', text_of(quiet))
    if journal then
      redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', 'quiet', 'detail', text_of(now - seen))
    end
    -- A clock that went back must not stretch the leases by as much.
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', keepalive, '(' .. text_of(now + ttl_max), '+inf')) do
      redis.call('ZADD', keepalive, now + ttl_max, name)
    end
  end
  redis.call('HSET', lane, 'seen', text_of(now), 'ttl', text_of(ttl_max))
end
