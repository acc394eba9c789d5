--[[
found: make a pool, or learn how it was made.

KEYS[1] config  hash   protocol, lanes, incarnation
ARGV[1] protocol     str   wire protocol of the caller
ARGV[2] lanes        str   lanes the caller wants
ARGV[3] incarnation  str   used when the pool is new

Returns  protocol, lanes, incarnation, server ms
Cost     O(1); 3 commands, 2 more where the pool is new
Why Lua  SetIfNotExists of three fields at once: the first to join decides for all.  What stands is never
         replaced: two nodes that both saw the data vanish would otherwise take the pool from each other.
]]
if redis.call('HEXISTS', config, 'incarnation') == 0 then
  redis.call('HDEL', config, '\n') -- on a full server too, or a pool that lost it alone could not go on
  redis.call('HSET', config, 'protocol', protocol, 'lanes', lanes, 'incarnation', incarnation)
end
local found = redis.call('HMGET', config, 'protocol', 'lanes', 'incarnation')
local time = redis.call('TIME')
return { found[1], found[2], found[3], string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)) }
