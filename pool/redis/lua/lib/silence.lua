--[[
silence: the lease clock goes on, by what renewals say; only they do that.

Needs  lane, ttl, lease, journal; keys lane, keepalive, journal; arguments first_ms, last_ms.
Gives  answered(gap): sets seen = now, after so many ms, and the lease clock by that; settled(passed, latest): likewise
       where pool time was set right; trim_leases(); hear_server(from): looks whether another server answers than before,
       where leases are granted from that lease time.

  tried   the part of the gap in which the caller had been asking in vain: from `first_ms` ago, when its first try
          began that was not answered, to `last_ms` ago, when the last one failed; 0, 0: it was answered
  lease = lease + min(gap, reach_ms, gap - tried)

Both are measured by the caller's own clock, so no clocks are compared; a late message says less, never more, since
only the gap counts.  Each script is one step: whoever dies before or after it leaves either clock whole.

Another server (another run id: a restart, or a failover) may lack the last renewals, so it fences nobody for one TTL of
lease time: `hold`.  A server that does not tell its run id (INFO is refused, or has none) is taken for the one before.
]]
local SILENCES_MAX = 16
-- No lease is so long, nor is anything kept so long after it (10 TTLs of at most an hour).
local LEASE_MS_MAX = 100000000
local had_lease = lease > 0

-- Where the lease clock begins anew, somebody else took it away: what was granted by another time may not last.
local function trim_leases()
  local most, count = lease + (had_lease and LEASE_MS_MAX or ttl_ms), had_lease and 16 or -1
  local long = lease > 0 and redis.call('ZRANGEBYSCORE', keepalive, '(' .. text_of(most), '+inf', 'LIMIT', 0, count) or {}
  for _, name in ipairs(long) do
    redis.call('ZADD', keepalive, lease + ttl_ms, name)
  end
end

-- What was renewed at a lease time before `before` was so by `latest`.
local function go_on(gap, passed, before, latest)
  local behind = seen - lease
  if not had_lease then
    lease, passed = now, 0
  elseif before then
    local words = {}
    for one in string.gmatch(redis.call('HGET', lane, 'silences') or '', '%d+|%-?%d+|%d+') do
      words[#words + 1] = one
    end
    words[#words + 1] = table.concat({ text_of(before), text_of(behind), text_of(latest) }, '|')
    redis.call('HSET', lane, 'silences', table.concat(words, ' ', math.max(1, #words - SILENCES_MAX + 1)))
    if gap > ttl_ms / 2 then
      journal_add(journal, 'silence', '', '', '', '', '', '',
        text_of(gap) .. ' ms since the last renewal, ' .. text_of(gap - passed) .. ' of them not counted')
    end
  end
  lease = lease + passed
  trim_leases()
  seen = now
  redis.call('HSET', lane, 'seen', text_of(seen), 'lease', text_of(lease))
end

local function answered(gap)
  gap = seen > 0 and math.max(0, gap) or 0 -- where somebody else took `seen` away, nobody knows
  local tried = first_ms > 0 and math.max(0, math.min(now, now - last_ms) - math.max(seen, now - first_ms)) or 0
  local passed = math.max(0, math.min(gap, reach_ms, gap - tried))
  if passed < gap then
    passed = math.max(passed, 1) -- else who renewed before and who renews now could not be told apart
  end
  go_on(gap, passed, passed < gap and lease + passed or nil, seen)
end

local function settled(passed, latest)
  go_on(0, passed, lease + window_ms + 1, latest)
end

local function hear_server(from)
  local info = redis.pcall('INFO', 'SERVER')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or nil
  if not had_lease or (run and run ~= redis.call('HGET', lane, 'run')) then
    if had_lease then
      journal_add(journal, 'server', '', '', '', '', '', '', run or '')
    end
    redis.call('HSET', lane, 'run', run or '', 'hold', text_of(from + ttl_ms))
  end
end
