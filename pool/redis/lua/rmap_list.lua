--[[
rmap_list: append to a list of a replicated map, or remove from it, as one revision.

Uses    list_plain, at, (typed), maps_time, (appended), rmap
KEYS[1] config  hash    the pool's generation
KEYS[2] maps    hash    as in rmap_write
KEYS[3] data    hash    as in rmap_write
KEYS[4] lists   zset    the items of its lists, and where in its list a value is
KEYS[5] log     stream  one delta per write, its id is <revision>-0
KEYS[6] due     zset    map -> when its time is up, by the maps' time
ARGV[1] generation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] nonce        str  drawn for this call
ARGV[4] items_max    str  > 0, in digits; strings and list items in the map
ARGV[5] life         str  as in rmap_write
ARGV[6] op           str  append, append_unique (each value that the list has not), or remove (each
                          value, wherever it stands in the list)
ARGV[7] key          str  whose list
ARGV[...] values     what to append or remove, at least one

Returns  [revision, stamp, items before, items now], or these as one text with spaces between; a list without
         items is no key.  If nothing changed, the revision is the present one and nothing is written.
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
         POOLMAPFULL <items>    the map would hold more than items_max
         POOLMAPVALUE <why>     the key holds a string
         OOM                    the server is full and something would be appended
         WRONGTYPE              foreign data under one of the keys
Cost     O(log items) per value and per item removed, whatever the length of the list; 8 commands, 1 to 2 for
         each value to look for, 2 to 3 with a time to live.  The list is neither read nor written again
Why Lua  as rmap_write
]]
local lost = begin({ key })
if lost then
  return lost
end
if strings[key] then
  return redis.error_reply('POOLMAPVALUE it holds a string, not a list')
end
local head, index = head_of(key), index_head(key)
local size_before = is_expired and 0 or redis.call('ZLEXCOUNT', lists, span(head, ':'))

local function packed(text)
  return #text .. ':' .. text
end

local function hash_of(value)
  return string.sub(redis.sha1hex(value), 1, 16)
end

-- The digits of all items of this value.
local function places_of(value)
  local places = {}
  if size_before > 0 then
    local found = index .. hash_of(value)
    for _, member in ipairs(redis.call('ZRANGEBYLEX', lists, span(found, ':'))) do
      local digits = string.sub(member, -19)
      if redis.call('ZSCORE', lists, head .. digits .. value) then -- else another value of this hash
        places[#places + 1] = digits
      end
    end
  end
  return places
end

local edits, places, seen, size = {}, {}, {}, size_before
for i = 8, #ARGV do
  local value = ARGV[i]
  if op == 'remove' then
    local found = seen[value] and {} or places_of(value)
    for _, digits in ipairs(found) do
      places[#places + 1] = { digits, value }
    end
    if #found > 0 then
      edits[#edits + 1] = 'r' .. packed(key) .. packed(value)
      size = size - #found
    end
  elseif op == 'append' or (op == 'append_unique' and not seen[value] and #places_of(value) == 0) then
    size = size + 1
    places[#places + 1] = { string.format('%03d', #places), value }
    edits[#edits + 1] = 'a' .. packed(key) .. packed(value)
  end
  seen[value] = true
end
if #edits == 0 then
  return { whole(revision), stamp, size_before, size_before }
end
if size > size_before and count() + size - size_before > tonumber(items_max) then
  return redis.error_reply('POOLMAPFULL ' .. count() .. ' ' .. items_max)
end

local until_ms = live(life)
if not until_ms then
  return foreign(maps)
end
commit(edits, op == 'remove' and 'shrink' or 'grow', until_ms)
local words, number = {}, string.format('%016d', revision)
for _, place in ipairs(places) do
  local digits, value = place[1], place[2]
  if op == 'remove' then
    words[#words + 1] = head .. digits .. value
    words[#words + 1] = index .. hash_of(value) .. digits
  else
    words[#words + 1] = 0
    words[#words + 1] = head .. number .. digits .. value
    words[#words + 1] = 0
    words[#words + 1] = index .. hash_of(value) .. number .. digits
  end
end
for i = 1, #words, 1024 do
  local last = math.min(#words, i + 1023)
  if op == 'remove' then
    redis.call('ZREM', lists, unpack(words, i, last))
  else
    redis.call('ZADD', lists, unpack(words, i, last))
  end
end
if op == 'remove' then
  settle()
end
return { whole(revision), stamp, size_before, size }
