--[[
renewed: who has renewed a lease within two periods, and so is most probably alive.

Needs  lane, lease; key keepalive.  Gives  has_renewed(target).

Workers that die together have leases that end one after another.  The keys of the first must not go to the second,
which is dead too: they would wait for its lease, and come back as suspects.  Between its death and the end of its
lease a worker does not renew, so its lease ends in less than TTL - 2 periods.  A living worker renews once a period; one
that has missed two gets the keys that are unassigned as soon as it asks for them.
]]
local function has_renewed(target)
  if target.is_renewed == nil then
    local ttl_granted_ms = whole(lane_had[7])
    if ttl_granted_ms < 1000 or ttl_granted_ms > 3600000 then
      ttl_granted_ms = 10000
    end
    local ends = tonumber(redis.call('ZSCORE', keepalive, target.name) or '0')
    target.is_renewed = ends >= lease_now + ttl_granted_ms - 2 * period_ms
  end
  return target.is_renewed
end
