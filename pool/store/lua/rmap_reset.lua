--[[
rmap_reset: remove everything from a replicated map, as one revision.

Uses    rmap
KEYS[1] config  hash    the pool's incarnation
KEYS[2] meta    hash    incarnation, revision and stamp of the map's last write; it stays
KEYS[3] items   hash    the map's strings
KEYS[4] lists   zset    the items of its lists
KEYS[5] index   zset    where in its list a value is
KEYS[6] log     stream  one delta per write, its id is <revision>-0
KEYS[7] due     zset    map -> when its time is up (server ms)
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] deltas_max   int  > 0; how many deltas the log keeps, at least
ARGV[4] tombstone_ms int  how long a destroyed map's place in its history is remembered
ARGV[5] reading_ms   int  how long its log is kept: whoever follows it has read it by then
ARGV[6] kind         str  reset; destroy, which leaves nothing but that; expire, if its time is up
ARGV[...] expected   key, value, key, value ...: only if all of these are in the map

Returns  [revision, stamp, met, items before]; if the condition did not hold, or nothing was there, the
         revision is the present one
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(expected) plus the freeing of the map, which goes on beside; at most 13 commands
Why Lua  as rmap_write; and revision and stamp stay, so that ids of the log never fall and a replica
         that waits there wakes
]]
local answer = { before_revision, before_stamp, '0', is_expired and 0 or count() }
if kind == 'expire' and not is_expired then
  return answer
end
for i = 7, #ARGV, 2 do
  if value_of(ARGV[i]) ~= ARGV[i + 1] then
    return answer
  end
end
answer[3] = '1'
if answer[4] > 0 or is_expired then
  answer[1], answer[2] = commit(is_expired and {} or { '*' }, false)
  empty()
end
if kind == 'destroy' and last[2] then
  redis.call('HDEL', meta, 'appended') -- first: what frees is never refused
  redis.call('HSET', meta, 'is_destroyed', '1')
  redis.call('PEXPIRE', meta, tombstone_ms)
  redis.call('PEXPIRE', log, reading_ms)
end
return answer
