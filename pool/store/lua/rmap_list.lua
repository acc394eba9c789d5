--[[
rmap_list: append to a list of a replicated map, or remove from it, as one revision.

Uses    rmap
KEYS[1] config  hash    the pool's incarnation
KEYS[2] meta    hash    as in rmap_write; and the number of the latest list item
KEYS[3] items   hash    the map's strings
KEYS[4] lists   zset    the items of its lists
KEYS[5] index   zset    where in its list a value is
KEYS[6] log     stream  one delta per write, its id is <revision>-0
KEYS[7] due     zset    map -> when its time is up (server ms)
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] deltas_max   int  > 0; how many deltas the log keeps, at least
ARGV[4] items_max    int  > 0; strings and list items in the map
ARGV[5] ttl_ms       int  how long the map lives; 0: for ever
ARGV[6] is_sliding   int  1: from this write on; 0: from the first one
ARGV[7] op           str  append, append_unique (each value that the list has not), or remove (each
                          value, wherever it stands in the list)
ARGV[8] key          str  whose list
ARGV[...] values     what to append or remove, at least one

Returns  [revision, stamp, items before, items now]; a list without items is no key.  If nothing changed,
         the revision is the present one and nothing is written.
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         POOLMAPFULL <items>    the map would hold more than items_max
         POOLMAPVALUE <why>     the key holds a string
         OOM                    the server is full and something would be appended
         WRONGTYPE              foreign data under one of the keys
Cost     O(log items) per value and per item removed, whatever the length of the list; 8 commands, and
         2 to 3 for each value.  The list is neither read nor written again
Why Lua  as rmap_write
]]
if not is_expired and redis.call('HEXISTS', items, key) == 1 then
  return redis.error_reply('POOLMAPVALUE it holds a string, not a list')
end
local size_before = is_expired and 0 or redis.call('ZLEXCOUNT', lists, span(key))
redis.call('ZCARD', index) -- foreign data there must fail before the first write
local head = head_of(key)

local function hash_of(value)
  return string.sub(redis.sha1hex(value), 1, 16)
end

-- The digits of all items of this value.
local function places_of(value)
  local places = {}
  if size_before > 0 then
    local found = head .. hash_of(value)
    for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[' .. found, '(' .. found .. ':')) do
      local digits = string.sub(member, -16)
      if redis.call('ZSCORE', lists, head .. digits .. value) then -- else another value of this hash
        places[#places + 1] = digits
      end
    end
  end
  return places
end

local edits, writes, seen = {}, {}, {}
-- From the server's time on, so that what is appended stands last even if that number was lost.
local size, appended = size_before, math.max(tonumber(last[4] or '0'), micros)
for i = 9, #ARGV do
  local value = ARGV[i]
  if op == 'remove' then
    local places = seen[value] and {} or places_of(value)
    for _, digits in ipairs(places) do
      writes[#writes + 1] = { digits, value }
    end
    if #places > 0 then
      edits[#edits + 1] = 'r' .. packed(key) .. packed(value)
      size = size - #places
    end
  elseif op == 'append' or (op == 'append_unique' and not seen[value] and #places_of(value) == 0) then
    appended, size = appended + 1, size + 1
    writes[#writes + 1] = { string.format('%016.0f', appended), value }
    edits[#edits + 1] = 'a' .. packed(key) .. packed(value)
  end
  seen[value] = true
end
if #edits == 0 then
  return { before_revision, before_stamp, size_before, size_before }
end
if size > size_before and count() + size - size_before > items_max then
  return redis.error_reply('POOLMAPFULL ' .. count() .. ' ' .. items_max)
end

local revision, stamp = commit(edits, op ~= 'remove')
redis.call('HSET', meta, 'appended', string.format('%.0f', appended))
for _, write in ipairs(writes) do
  local digits, value = write[1], write[2]
  if op == 'remove' then
    redis.call('ZREM', lists, head .. digits .. value)
    redis.call('ZREM', index, head .. hash_of(value) .. digits)
  else
    redis.call('ZADD', lists, 0, head .. digits .. value)
    redis.call('ZADD', index, 0, head .. hash_of(value) .. digits)
  end
end
extend(op ~= 'remove')
return { revision, stamp, size_before, size }
