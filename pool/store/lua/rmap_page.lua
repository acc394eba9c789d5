--[[
rmap_page: the next part of a replicated map, and what changed since the part before.

KEYS[1] config  hash    the pool's incarnation
KEYS[2] meta    hash    incarnation, revision and stamp of the map's last write
KEYS[3] items   hash    the map's strings
KEYS[4] lists   zset    the items of its lists
KEYS[5] due     zset    map -> when its time is up (server ms)
KEYS[6] log     stream  one delta per write, its id is <revision>-0
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] bytes_max    int  > 0; of the changes, and of the items: what goes beyond it is one change, or few items
ARGV[4] revision     str  how far the parts before lead; empty: this is the first
ARGV[5] strings_at   str  cursor of the strings that come next; empty: all came
ARGV[6] lists_at     bytes  likewise of the items of lists, as ZRANGEBYLEX takes it

Returns  [revision, stamp, entries of the log since, more, strings, items of lists, next strings_at, over, count of strings,
         count of list items]: '0' and '0' for a map never written; more is 1 if there are more entries than came, and
         then no items do; strings is flat: key, value ...; the items of a list are in order, see lib/rmap; over
         is 1 if these were the last; nil if the map's time is up and nobody has emptied it yet
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         WRONGTYPE              foreign data under one of the keys
Cost     O(what it returns): about bytes_max, and at most bytes_max / 32 items; writes nothing while meta is right
Why Lua  changes, items and revision are of one moment, else a delta would be applied twice or never.

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
local at, stamp = string.match((last[1] or '0') .. '-' .. (last[2] or '0'), '^(%d+)-(%d+)$')
local is_readable = at and math.max(#at, #stamp) <= 16
local strings_count, lists_count = redis.call('HLEN', items), redis.call('ZCARD', lists)
local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
-- Above all that was logged: a reader that waits behind it always wakes.
local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
if not is_readable or at == '0' or logged > tonumber(at) then
  at, stamp = '0', '0'
  if newest or strings_count > 0 or lists_count > 0 then
    local time = redis.call('TIME')
    local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
    stamp = string.format('%.0f', micros)
    at = string.format('%.0f', math.max(logged + 1, micros))
    redis.call('HDEL', meta, 'revision', 'stamp', 'appended') -- on a full server too
    redis.call('HSET', meta, 'incarnation', incarnation, 'revision', at, 'stamp', stamp)
  end
end

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

local entries, left, since = {}, bytes_max, revision ~= '' and revision .. '-0'
while since and left > 0 do
  local entry = redis.call('XRANGE', log, '(' .. since, '+', 'COUNT', 1)[1]
  since = entry and entry[1]
  if entry then
    entries[#entries + 1] = entry
    left = left - weight(entry[2]) - EACH
  end
end
if since and since ~= newest[1] then
  return { at, stamp, entries, 1, {}, {}, strings_at, 0, strings_count, lists_count }
end

local strings, members = {}, {}
left = bytes_max
local came, spent = 0, 0
local function step()
  return came == 0 and 4 or math.max(1, math.min(STEP, math.floor(left * came / spent)))
end
local function count(number, size)
  came, spent = came + number, spent + size + EACH * number
  left = bytes_max - spent
end
while strings_at ~= '' and left > 0 do
  local slice = redis.call('HSCAN', items, strings_at, 'COUNT', step())
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
  local found = redis.call('ZRANGEBYLEX', lists, lists_at, '+', 'LIMIT', 0, wanted)
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
return { at, stamp, entries, 0, strings, members, strings_at, over and 1 or 0, strings_count, lists_count }
