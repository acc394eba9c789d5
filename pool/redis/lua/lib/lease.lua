--[[
lease: the lease clock of a lane.  Needs  lane.

Gives  lease (lease time at `seen`), lease_now, reach_ms, window_ms.

The scores of `keepalive` are lease time.  It runs with pool time, but stands still from `reach_ms` after the last
renewal that was answered, and for as long as the next renewal says that it had been asked for in vain (see silence).

      seen                        seen + reach_ms
  -----|------------------------------|-----------------> pool time
     lease ------- runs -------> lease + reach_ms  stands still

Safe: it never runs faster than time.  So between a renewal at r and a fence at f at most f - r passes in it, and a
lease ends no earlier than one TTL after it was renewed, whoever saw which silence.
While nobody vouches for the server's clock, leases are granted from lease + window_ms: as far as a settled clock
can set it (see clock).
`silences` holds the last ones, `until|behind|latest` each: what was renewed at a lease time before `until` was renewed
`behind` later in pool time, and not after `latest`.
]]
local lease = whole(lane_had[13])
if lease > STAMP_MAX / 1000 then
  lease = 0
end
-- A period, the deadline of a renewal and the pause before the next try: so long no living node leaves a gap.
local reach_ms, window_ms = math.floor(1.75 * period_ms), 2 * period_ms
-- Nobody has renewed yet: leases are of pool time until then.
local lease_now = lease > 0 and lease + math.min(math.max(0, now - seen), reach_ms) or now
