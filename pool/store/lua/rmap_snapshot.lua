--[[
rmap_snapshot: the whole of a replicated map, and where in its history that is.

Uses    at, maps_time
KEYS[1] config  hash  the pool's incarnation
KEYS[2] maps    hash  the time by which maps end; floor: highest revision of those that have
KEYS[3] data    hash  where the map is (see at), and its strings: =key -> value
KEYS[4] lists   zset  the items of its lists, and where in its list a value is
KEYS[5] log     stream  one delta per write, its id is <revision>-0
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] nonce        str  drawn for this call

Returns  [revision, stamp, strings, items of lists]: '0' and '0' for a map that is not there; strings is
         flat: field, value ...; the items of a list are in order, see lib/rmap; nil if the map's time is up
         and nobody has emptied it yet
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(keys and list items of the map); 6 commands; writes nothing while the map is whole
Why Lua  items and revision are of one moment, else a delta would be applied twice or never.

A map whose place is gone, or junk, or behind its log, as a write that was broken off leaves it, goes on behind
all that was logged: else its log would be replayed onto its own items, again and again.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local at = redis.call('HGET', data, 'at')
local from, revision, stamp, ends = read_place(at)
if from and ends > 0 and ends <= maps_time() then
  return false
end
local held, members = redis.call('HGETALL', data), redis.call('ZRANGEBYLEX', lists, '[l', '(m')
local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
-- Above all that was logged: a reader that waits behind it always wakes.
local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
local had = redis.pcall('HGET', maps, 'floor') -- foreign data there are no matter of this map
local floor = type(had) == 'string' and tonumber(string.match(had, '^%d+$')) or 0
if not at and logged <= floor and #held == 0 and #members == 0 then
  return { '0', '0', held, members } -- it never was, or has ended
end
if not from or logged > revision then
  local time = redis.call('TIME')
  revision = math.max(logged + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  stamp = string.sub(redis.sha1hex(nonce), 1, 16)
  redis.call('HDEL', data, 'at') -- on a full server too
  redis.call('HSET', data, 'at', string.format('%s %.0f %s %.0f', incarnation, revision, stamp, ends or 0))
end
return { whole(revision), stamp, held, members }
