--[[
open_pool: make a pool, or learn how it was made.

KEYS[1] config  hash   protocol, lanes, incarnation, ttl, named
ARGV[1] protocol     str   wire protocol of the caller
ARGV[2] lanes        str   lanes the caller wants; 0: it needs no pool, only the TTL that it has
ARGV[3] generation  str   used when the pool is new
ARGV[4] ttl_ms       int   used when the pool has none: 1,000 to 3,600,000; 0: it gets none
ARGV[5] named_ms     int   the TTL that the caller's settings name, or that lanes still have; 0: none

Returns  protocol, lanes, generation, TTL (ms), server ms, 1 if the generation was written here, else 0,
         1 if somebody has named the TTL, else 0
Cost     O(1); 4 commands, 5 more where the pool is new
Why Lua  SetIfNotExists of three fields at once: the first to join decides for all.  What stands is never
         replaced: two nodes that both saw the data vanish would otherwise take the pool from each other.

A TTL that nobody has named is the default of a node without settings.  The first node that names one replaces it, and
`named` says so from then on.
]]
local wrote = 0
if lanes ~= '0' and redis.call('HEXISTS', config, 'incarnation') == 0 then
  redis.call('HDEL', config, '\n') -- on a full server too, or a pool that lost it alone could not go on
  redis.call('HSET', config, 'protocol', protocol, 'lanes', lanes, 'incarnation', generation)
  wrote = 1
end
local ttl_had = tonumber(redis.call('HGET', config, 'ttl') or '')
local is_ours = ttl_had and ttl_had >= 1000 and ttl_had <= 3600000 and ttl_had % 1 == 0
local is_named = is_ours and redis.call('HEXISTS', config, 'named') == 1
if named_ms > 0 and not is_named and (is_ours or ttl_ms > 0) then
  redis.call('HDEL', config, '\n')
  redis.call('HSET', config, 'ttl', string.format('%.0f', named_ms), 'named', '1')
  is_named = true
elseif not is_ours and ttl_ms > 0 then
  redis.call('HDEL', config, '\n', 'named')
  redis.call('HSET', config, 'ttl', string.format('%.0f', ttl_ms))
end
local found = redis.call('HMGET', config, 'protocol', 'lanes', 'incarnation', 'ttl')
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return { found[1], found[2], found[3], found[4], now_ms, wrote, is_named and 1 or 0 }
