--[[
quiet: notice that nobody could renew, or that the server's clock went back; only renewals and takeovers do.

Needs  lane; keys keepalive, journal (or nil); argument ttl_ms.  Gives quiet (ms until which nobody is fenced).
Otherwise one outage longer than the TTL, or one clock step, would evict the whole fleet.
]]
local quiet_had = redis.call('HMGET', lane, 'seen', 'quiet', 'ttl')
local seen, quiet = whole(quiet_had[1]), whole(quiet_had[2])
local ttl_max = math.max(whole(quiet_had[3]), ttl_ms)

-- No lease is so long, nor is anything kept so long after it (10 TTLs of at most an hour).
local LEASE_MS_MAX = 100000000

local function notice_gap()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', keepalive, '(' .. text_of(now + LEASE_MS_MAX), '+inf', 'LIMIT', 0, 16)) do
    redis.call('ZADD', keepalive, now + ttl_max, name)
  end
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
