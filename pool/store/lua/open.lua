--[[
open: say how many keys a worker takes, or that it takes none.

KEYS[1] lane       hash    incarnation
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    worker id -> incarnation|capacity
ARGV[1] incarnation  str
ARGV[2] id           str   worker id
ARGV[3] number       str   its incarnation in this lane
ARGV[4] capacity     int   keys it takes; 0: none

Uses     lane
Returns  OK
Errors   POOLDATALOST <lane>, POOLGONE <identity>
Cost     O(1); 4 commands
Why Lua  a fenced worker must not open itself again.
]]
local name = id .. '.' .. number
if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
  return redis.error_reply('POOLGONE ' .. name)
end
redis.call('HDEL', open, '\n')
if capacity > 0 then
  redis.call('HSET', open, id, number .. '|' .. ARGV[4])
else
  redis.call('HDEL', open, id)
end
return 'OK'
