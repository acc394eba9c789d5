--[[
rmap_page: the next part of a replicated map, and what changed since the part before.

Uses    typed, at, maps_time, (appended)
KEYS[1] config  hash    the pool's generation
KEYS[2] maps    hash    the time by which maps end; floor: highest revision of those that have
KEYS[3] data    hash    where the map is (see at), and its strings: =key -> value
KEYS[4] lists   zset    the items of its lists, and where in its list a value is
KEYS[5] log     stream  one delta per write, its id is <revision>-0
ARGV[1] generation  str    the pool's, as the caller knows it
ARGV[2] nonce        str    drawn for this call
ARGV[3] bytes_max    int    > 0; of the changes, and of the items: what goes beyond it is one change, or few items
ARGV[4] reached      str    the revision to which the parts before lead; empty: this is the first
ARGV[5] strings_at   str    cursor of the strings that come next; empty: all came
ARGV[6] lists_at     bytes  likewise of the items of lists, as ZRANGEBYLEX takes it

Returns  [revision, stamp, entries of the log since, more, strings, items of lists, next strings_at, over, count of strings,
         count of list items]: '0' and '0' for a map that is not there, or where it ended; more is 1 if there are more entries than came,
         and then no items do; strings is flat: field, value ..., with `at` among them; the items of a list are in
         order, see lib/rmap; over is 1 if these were the last; nil if the map's time is up and nobody has emptied it yet
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(what it returns): about bytes_max, and at most bytes_max / 32 items; writes nothing while the map is whole
Why Lua  changes, items and revision are of one moment, else a delta would be applied twice or never.

A map whose place is gone, or junk, or behind its log, as a write that was broken off leaves it, goes on behind
all that was logged: else its log would be replayed onto its own items, again and again.  And behind all that was
appended: else what comes would stand in front of it, where the clock was set back.
]]
if redis.call('HGET', config, 'incarnation') ~= generation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local at = redis.call('HGET', data, 'at')
local from, revision, stamp, ends = read_place(at)
if from and ends > 0 then
  local now = maps_time()
  if not now then
    return foreign(maps)
  elseif ends <= now then
    return false
  end
end
local strings_count = redis.call('HLEN', data) - (at and 1 or 0)
local lists_count = redis.call('ZLEXCOUNT', lists, '[l', '(m')
-- An entry may be of 16 MiB, and is read as a whole for its number: none is where none lies behind the place.
local newest
if not from or redis.call('XRANGE', log, '(' .. whole(revision) .. '-0', '+', 'COUNT', 1)[1] then
  newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
end
-- Above all that was logged: a reader that waits behind it always wakes.
local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
local had = typed('HGET', maps, 'floor') -- foreign data there are no matter of this map
local floor = type(had) == 'string' and tonumber(string.match(had, '^%d+$')) or 0
if not at and logged <= floor and strings_count == 0 and lists_count == 0 then
  -- It never was, or has ended: there its log does, which nobody is to read from its beginning.
  local last = {}
  for i = 1, newest and #newest[2] or 0, 2 do
    last[newest[2][i]] = newest[2][i + 1]
  end
  local made, led_to = string.match(last.at or '', '^(%S+) (%x+) ')
  local is_ours = made == generation
  return { is_ours and whole(logged) or '0', is_ours and led_to or '0', {}, 0, {}, {}, '', 1, 0, 0 }
end
if not from or logged > revision then
  local time = redis.call('TIME')
  local appended = lists_count > 0 and newest_item(lists) or 0
  revision = math.max(logged + 1, appended + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  stamp = string.sub(redis.sha1hex(nonce), 1, 16)
  redis.call('HDEL', data, 'at') -- on a full server too
  redis.call('HSET', data, 'at', string.format('%s %.0f %s %.0f', generation, revision, stamp, ends or 0))
end
revision = whole(revision)
local last_id = newest and newest[1] or revision .. '-0'

local STEP = 64 -- entries at once, while they are small
-- What one costs beside its bytes, here and in the copy: it bounds their number, and so the time this takes.
local EACH = 64

local function weight(texts)
  local sum = 0
  for _, text in ipairs(texts) do
    sum = sum + #text
  end
  return sum
end

local entries, left, since = {}, bytes_max, reached ~= '' and reached .. '-0'
while since and left > 0 do
  local entry = redis.call('XRANGE', log, '(' .. since, '+', 'COUNT', 1)[1]
  since = entry and entry[1]
  if entry then
    entries[#entries + 1] = entry
    left = left - weight(entry[2]) - EACH
  end
end
if since and since ~= last_id then
  return { revision, stamp, entries, 1, {}, {}, strings_at, 0, strings_count, lists_count }
end

local strings, members = {}, {}
left = bytes_max
local came, spent = 0, 0
local function step()
  -- Of the first ones nothing is known but that none is larger than 64 KiB.
  local fit = came == 0 and math.min(4, left / 65536) or math.min(STEP, left * came / spent)
  return math.max(1, math.floor(fit))
end
local function count(number, size)
  came, spent = came + number, spent + size + EACH * number
  left = bytes_max - spent
end
while strings_at ~= '' and left > 0 do
  local slice = redis.call('HSCAN', data, strings_at, 'COUNT', step())
  strings_at = slice[1] == '0' and '' or slice[1]
  for _, text in ipairs(slice[2]) do
    strings[#strings + 1] = text
  end
  count(#slice[2] / 2, weight(slice[2]))
  left = left - EACH -- a step that finds nothing costs, too
end
local over = lists_count == 0 and strings_at == ''
while strings_at == '' and not over and left > 0 do
  local wanted = step()
  local found = redis.call('ZRANGEBYLEX', lists, lists_at, '(m', 'LIMIT', 0, wanted)
  over = #found < wanted
  for i, member in ipairs(found) do
    members[#members + 1] = member
    count(1, #member)
    if left <= 0 then
      over = over and i == #found
      break
    end
  end
  lists_at = '(' .. (members[#members] or '')
end
return { revision, stamp, entries, 0, strings, members, strings_at, over and 1 or 0, strings_count, lists_count }
