--[[
ttl: the TTL that a lane goes by.  Needs  lane; key lane.

Gives  ttl_ms, term_now: the number of the change that made it so; later ones have higher numbers.
No script asks its caller for how long: a caller with another TTL decides for nobody, not even for itself.
What somebody else wrote there counts as the default.
]]
local ttl_had = redis.call('HMGET', lane, 'ttl', 'term')
local ttl_ms, term_now = whole(ttl_had[1]), whole(ttl_had[2])
if ttl_ms < 1000 or ttl_ms > 3600000 then
  ttl_ms = 10000
end
