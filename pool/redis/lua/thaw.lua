--[[
thaw: an identity that was fenced says that its process lives: it was frozen or cut off, not killed.

KEYS[1] lane     hash  incarnation
KEYS[2] thawed   zset  identity -> until when that is known
ARGV[1] generation  str
ARGV[2] known_ms     int   > 0; how long that is known
ARGV[...] names        identities

Uses     lane
Returns  OK
Errors   POOLDATALOST <lane>
Cost     O(names * log n); 1 command each, 5 a call
Why Lua  only a lane of our generation, and only the server's clock, may be written to.
]]
redis.call('ZREM', thawed, '\n')
-- What has been known for long enough goes when more comes, faster than it comes.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', thawed, '-inf', now, 'LIMIT', 0, #ARGV + 16)) do
  redis.call('ZREM', thawed, old)
end
for i = 3, #ARGV do
  redis.call('ZADD', thawed, now + known_ms, ARGV[i])
end
return 'OK'
