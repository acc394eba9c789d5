--[[
rmap_snapshot: the whole of a replicated map, and where in its history that is.

KEYS[1] config  hash  the pool's incarnation
KEYS[2] meta    hash  incarnation, revision and stamp of the map's last write
KEYS[3] items   hash  the map's strings
KEYS[4] lists   zset  the items of its lists
KEYS[5] due     zset  map -> when its time is up (server ms)
KEYS[6] log     stream  one delta per write, its id is <revision>-0
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's

Returns  [revision, stamp, strings, items of lists]: '0' and '0' for a map never written; strings is
         flat: key, value ...; the items of a list are in order, see lib/rmap; nil if the map's time is up
         and nobody has emptied it yet
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(keys and list items of the map); 7 commands; writes nothing while meta is right
Why Lua  items and revision are of one moment, else a delta would be applied twice or never.

A map whose meta is gone, or junk, or behind its log, as a write that was broken off leaves it, goes on behind
all that was logged: else its log would be replayed onto its own items, again and again.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local ends_ms = redis.call('ZSCORE', due, name)
if ends_ms then
  local time = redis.call('TIME')
  if tonumber(ends_ms) <= tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) then
    return false
  end
end
local last = redis.call('HMGET', meta, 'revision', 'stamp')
local revision, stamp = string.match((last[1] or '0') .. '-' .. (last[2] or '0'), '^(%d+)-(%d+)$')
local is_readable = revision and math.max(#revision, #stamp) <= 16
local strings, members = redis.call('HGETALL', items), redis.call('ZRANGE', lists, 0, -1)
local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
-- Above all that was logged: a reader that waits behind it always wakes.
local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
if not is_readable or revision == '0' or logged > tonumber(revision) then
  revision, stamp = '0', '0'
  if newest or #strings > 0 or #members > 0 then
    local time = redis.call('TIME')
    local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
    stamp = string.format('%.0f', micros)
    revision = string.format('%.0f', math.max(logged + 1, micros))
    redis.call('HDEL', meta, 'revision', 'stamp', 'appended') -- on a full server too
    redis.call('HSET', meta, 'incarnation', incarnation, 'revision', revision, 'stamp', stamp)
  end
end
return { revision, stamp, strings, members }
