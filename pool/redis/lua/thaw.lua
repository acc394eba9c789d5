--[[
thaw: a process whose workers were fenced, or could not leave, says that it lives: nobody killed it.

KEYS[1] lane     hash  incarnation
KEYS[2] deaths   zset  PROCESS.MS -> when it died; see fence
KEYS[3] open     hash  id -> number|takes|seq[|ails]
ARGV[1] generation  str
ARGV[...] names        identities of its workers in this lane, of which none is in use any more

Uses     lane
Returns  OK
Errors   POOLDATALOST <lane>
Cost     O(names + n), n at most 256; 2 commands each, 5 a call
Why Lua  only a lane of our generation may be written to.

Where it is the last death of a job's crash marks they are void from now on; see lib/marks.  An identity that is to be
fenced yet is closed like one that drains: its end will be no death.  The entry stays until the identity is fenced, because
a late renewal would open an identity that has none.  A repeat finds nothing to do.
]]
redis.call('HLEN', open)
redis.call('ZCARD', deaths)
redis.call('ZREM', deaths, '\n') -- frees, so that a full server lets the rest pass
local lives = {}
for i = 2, #ARGV do
  lives[string.sub(ARGV[i], 2, 11)] = true
  local id, n = string.match(ARGV[i], '^(.*)%.(%d+)$')
  if id and string.match(redis.call('HGET', open, id) or '', '^(%d+)|') == n then
    redis.call('HSET', open, id, n .. '|0|0|0')
  end
end
for _, name in ipairs(redis.call('ZRANGE', deaths, 0, -1)) do
  if lives[string.match(name, '^(.*)%.%d+$')] then
    redis.call('ZREM', deaths, name)
  end
end
return 'OK'
