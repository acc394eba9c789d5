--[[
rmap_reset: remove everything from a replicated map, as one revision.

Uses    typed, at, maps_time, (appended), rmap
KEYS[1] config  hash    the pool's generation
KEYS[2] maps    hash    as in rmap_write
KEYS[3] data    hash    as in rmap_write
KEYS[4] lists   zset    the items of its lists, and where in its list a value is
KEYS[5] log     stream  one delta per write, its id is <revision>-0
KEYS[6] due     zset    map -> when its time is up, by the maps' time
ARGV[1] generation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] nonce        str  drawn for this call
ARGV[4] kind         str  reset; destroy, which leaves nothing of the map; expire: that, if its time is up
ARGV[...] expected   key, value, key, value ...: only if all of these are in the map

Returns  [revision, stamp, met, items before]; if the condition did not hold, or nothing was there, the
         revision is the present one
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(expected) plus the freeing of the map, which goes on beside; at most 13 commands
Why Lua  as rmap_write

What ends a map leaves its log for a minute, for those who follow it, and the revision at which it ended counts
for all maps of the pool: none begins below it, so ids of a log never fall and a replica that waits there wakes.
]]
local keys = {}
for i = 5, #ARGV, 2 do
  keys[#keys + 1] = ARGV[i]
end
local lost = begin(keys)
if lost then
  return lost
end
local size = count()
if kind == 'expire' and not is_expired then
  -- One that was given more time keeps it; of one that is gone not even the note stays.
  redis.pcall('ZREM', due, '\n')
  note()
  return { whole(revision), stamp, '0', size }
end
for i, key in ipairs(keys) do
  if strings[key] ~= ARGV[4 + 2 * i] then
    return { whole(revision), stamp, '0', size }
  end
end
if kind ~= 'reset' then
  if revision > 0 or size > 0 then
    if type(typed('HLEN', maps)) == 'table' then
      return foreign(maps) -- where it ended could not be noted
    end
    commit({ '*' }, 'end', 0)
  end
elseif size > 0 or is_expired then
  commit({ '*' }, 'reset', 0)
end
return { whole(revision), stamp, '1', size }
