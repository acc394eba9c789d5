--[[
quiet: notice that nobody could renew, or that time was set right; only renewals do.

Needs  lane, ttl, journal; keys lane, keepalive, journal.  Gives quiet (ms until which nobody is fenced),
notice_gap(is_stepped, late_ms): which came so long after the first who could have said so; trim_leases().
Otherwise one outage longer than the TTL, or one clock step, would evict the whole fleet.
]]
local quiet_had = redis.call('HMGET', lane, 'seen', 'quiet')
local seen, quiet = whole(quiet_had[1]), whole(quiet_had[2])

-- No lease is so long, nor is anything kept so long after it (10 TTLs of at most an hour).
local LEASE_MS_MAX = 100000000

local function trim_leases()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', keepalive, '(' .. text_of(now + LEASE_MS_MAX), '+inf', 'LIMIT', 0, 16)) do
    redis.call('ZADD', keepalive, now + ttl_ms, name)
  end
end

local function notice_gap(is_stepped, late_ms)
  trim_leases()
  if seen > 0 and (is_stepped or now - seen > ttl_ms / 2 or now < seen) then
    quiet = now + ttl_ms - (late_ms or 0)
    redis.call('HSET', lane, 'quiet', text_of(quiet))
    journal_add(journal, 'quiet', '', '', '', '', '', '', text_of(now - seen) .. ' ms since the last renewal')
  end
  if now < seen or seen == 0 then
    -- A clock that went back must not stretch the leases by as much.  Each keeps what it had left: that
    -- is more than a TTL if it was granted before the TTL fell.
    local late = redis.call('ZRANGEBYSCORE', keepalive, '(' .. text_of(now + ttl_ms), '+inf', 'WITHSCORES')
    for i = 1, #late, 2 do
      redis.call('ZADD', keepalive, now + math.max(ttl_ms, seen > 0 and tonumber(late[i + 1]) - seen or 0), late[i])
    end
  end
  redis.call('HSET', lane, 'seen', text_of(now))
end
