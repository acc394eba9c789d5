--[[
rmap_find: whether a replicated map's history has these revisions, as far as its log tells.

Uses    typed, at, maps_time
KEYS[1] config  hash    the pool's generation
KEYS[2] maps    hash    floor: highest revision of the maps that have ended
KEYS[3] data    hash    where the map is
KEYS[4] log     stream  one delta per write, its id is <revision>-0
ARGV[1] generation    str  the pool's, as the caller knows it
ARGV[...] revisions    ints

Returns  [the map's revision, '0' if it is not there; the highest at which any has ended; of each revision
         asked for its stamp; '0': the log goes past it, or the map began behind it, so it never was or is lost;
         nil: the log does not reach back so far]
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(revisions), 4 commands and 1 to 2 for each; writes nothing
Why Lua  of one moment: a revision that is neither there nor below what is was lost.

Numbers are skipped where a map ends and lives again.  A revision that no delta led to, as a place that was mended
has it, is known by the delta that led on from it.  Below a delta that began the map there is nothing of it, but of
one that had ended: the log of that is kept for a minute, and floor is above it for ever.
]]
if redis.call('HGET', config, 'incarnation') ~= generation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local _, revision, stamp_now = read_place(redis.call('HGET', data, 'at'))
local had = typed('HGET', maps, 'floor')
if not revision and type(had) == 'table' then
  return foreign(maps)
end
local floor = not had and '0' or type(had) == 'string' and string.match(had, '^%d+$')
local answer = { revision and whole(revision) or '0', floor or '0' }
local function stamp_at(number)
  if number == answer[1] then
    return revision and stamp_now or '0'
  end
  local entry = redis.call('XRANGE', log, number .. '-0', '+', 'COUNT', 1)[1]
  local fields = {}
  for at = 1, entry and #entry[2] or 0, 2 do
    fields[entry[2][at]] = entry[2][at + 1]
  end
  local led_to, before, led_from = string.match(fields.at or '', '^%S+ (%x+) (%d+)%-(%x+)$')
  local stamp = entry and entry[1] == number .. '-0' and (led_to or '0') or before == number and led_from
  local began = before == '0' and floor and tonumber(number) > tonumber(floor)
  return stamp or (began or redis.call('XREVRANGE', log, '(' .. number .. '-0', '-', 'COUNT', 1)[1]) and '0' or false
end
for i = 2, #ARGV do
  answer[i + 1] = stamp_at(ARGV[i])
end
return answer
