--[[
rmap_snapshot: the whole of a replicated map, and where in its history that is.

KEYS[1] config  hash  the pool's incarnation
KEYS[2] meta    hash  incarnation, revision and stamp of the map's last write
KEYS[3] items   hash  the map itself
ARGV[1] incarnation  str  the pool's, as the caller knows it

Returns  [revision, stamp, items]: '0' and '0' for a map never written; items is flat: key, value ...
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(keys of the map); 3 commands; writes nothing
Why Lua  items and revision are of one moment, else a delta would be applied twice or never.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local last = redis.call('HMGET', meta, 'revision', 'stamp')
return { last[1] or '0', last[2] or '0', redis.call('HGETALL', items) }
