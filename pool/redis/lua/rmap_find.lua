--[[
rmap_find: whether a replicated map's history has these revisions, as far as its log tells.

Uses    at
KEYS[1] config  hash    the pool's incarnation
KEYS[2] maps    hash    floor: highest revision of the maps that have ended
KEYS[3] data    hash    where the map is
KEYS[4] log     stream  one delta per write, its id is <revision>-0
ARGV[1] incarnation    str  the pool's, as the caller knows it
ARGV[...] revisions    ints

Returns  [the map's revision, '0' if it is not there; the highest at which any has ended; of each revision
         asked for its stamp, or nil: the log does not have it]
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(revisions), 4 commands and 1 for each; writes nothing
Why Lua  of one moment: a revision that is neither there nor below what is was lost.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local _, revision, stamp_now = read_place(redis.call('HGET', data, 'at'))
local floor = string.match(redis.call('HGET', maps, 'floor') or '', '^%d+$') or '0'
local answer = { revision and whole(revision) or '0', floor }
for i = 2, #ARGV do
  local entry = redis.call('XRANGE', log, ARGV[i] .. '-0', ARGV[i] .. '-0')[1]
  local stamp = revision and whole(revision) == ARGV[i] and stamp_now or false
  for at = 1, entry and #entry[2] or 0, 2 do
    if entry[2][at] == 'stamp' then
      stamp = entry[2][at + 1]
    end
  end
  answer[i + 1] = stamp
end
return answer
