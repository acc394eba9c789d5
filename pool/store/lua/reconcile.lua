--[[
reconcile: read everything a worker owns, for it to compare with what it does.

A member of `owned` without a record is dropped.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record
KEYS[3] owned      set     keys it runs
KEYS[4] stream     stream  starts it has not acknowledged
ARGV[1] incarnation  str
ARGV[2] worker       str   id.n

Uses     lane
Returns  stamp; keys it runs with their records (key, record, ...); its unacknowledged entries
Errors   POOLDATALOST <lane>
Cost     O(keys it owns)
Why Lua  both structures at one moment: a key between them would look lost.
]]
local running = {}
for _, key in ipairs(redis.call('SMEMBERS', owned)) do
  local text = redis.call('HGET', jobs, key)
  if text then
    running[#running + 1] = key
    running[#running + 1] = text
  else
    redis.call('SREM', owned, key) -- only an index entry: it would look like a lost job for ever
  end
end
return { text_of(stamp_last), running, redis.call('XRANGE', stream, '-', '+') }
