--[[
rmap_write: change strings of a replicated map and log the change, as one revision.

Uses    rmap_plain, at, (typed), maps_time, (appended), rmap
KEYS[1] config  hash    the pool's generation
KEYS[2] maps    hash    now, seen: the time by which maps end; floor: highest revision of those that have
KEYS[3] data    hash    where the map is (see at), and its strings: =key -> value
KEYS[4] lists   zset    the items of its lists
KEYS[5] log     stream  one delta per write, its id is <revision>-0
KEYS[6] due     zset    map -> when its time is up, by the maps' time
ARGV[1] generation  str  the pool's, as the caller knows it
ARGV[2] name         str  the map's
ARGV[3] nonce        str  drawn for this call
ARGV[4] items_max    str  > 0, in digits; strings and list items in the map
ARGV[5] life         str  how long the map lives; '': for ever, or as whoever wrote before has said; else ms, and from
                          when on: 0 from the first write on; 1 from this one on; 2 the ms are when it ends, server ms
ARGV[...] ops        per operation: its name, the key, and its own words (see OPS)

Returns  of a plain one revision, stamp and previous string as one text, with spaces between; else
         [revision, stamp, met, previous, met, previous ...]: met is '1' if the operation's condition
         held, else '0' and it changed nothing; previous is a string, the size of a list, or nil
         (of a put in any case).
         Operations see the effect of those before them.  All that changed is one revision; if
         nothing did, the revision is the present one and nothing is written.
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
         POOLMAPFULL <items>    a key would be added, and the map holds items_max already
         POOLMAPVALUE <why>     increment of what is not a whole number, or beyond 2^53 - 1
         OOM                    the server is full and a key would be set, but in the pool's own map; deletes
                                still succeed
         WRONGTYPE              foreign data under one of the keys
Cost     O(operations), and O(items) of each list that is replaced; 4 commands, 2 to 3 more where a key is
         added, 1 where one is removed, 2 for each list that is replaced, 2 to 3 with a time to live
Why Lua  compare, apply, count and log are one step, else two writers could log in another order
         than they wrote, and replicas would drift for ever.

The log is short: it is a way to be quick, not the truth.  A replica that falls behind it meets a delta that
does not continue its own history, and takes a snapshot.
]]
local WHOLE_MAX = 9007199254740991 -- beyond it a double skips numbers

local function increased(now, by)
  local number = 0
  if now then
    number = type(now) == 'string' and string.match(now, '^-?%d+$') and tonumber(now)
    if not number or number > WHOLE_MAX or number < -WHOLE_MAX then
      return nil, 'it holds no whole number up to 2^53 - 1'
    end
  end
  number = number + tonumber(by)
  if number > WHOLE_MAX or number < -WHOLE_MAX then
    return nil, 'the sum is beyond 2^53 - 1'
  end
  return whole(number)
end

-- How many words an operation has behind its key.
local function words_of(op)
  return op == 'delete' and 0 or op == 'compare_and_set' and 2 or 1
end

local keys, at = {}, 6
while at < #ARGV do
  keys[#keys + 1] = ARGV[at + 1]
  at = at + 2 + words_of(ARGV[at])
end
local lost = begin(keys)
if lost then
  return lost
end

-- Decide.  `strings` becomes what the touched keys will hold; `changed` names those to write, in order.
local answer, changed, is_changed, had_list = { '', '' }, {}, {}, {}
local kind, added, at = 'shrink', 0, 6
for _, key in ipairs(keys) do
  local op, word = ARGV[at], ARGV[at + 2]
  local now = strings[key]
  if not now and not is_changed[key] then
    now = size_of(key)
    had_list[key] = now and true or nil
  end
  -- Whether the condition holds, and which value the key then has (false: none).
  local met, value, problem = true, false, nil
  if op == 'set' or op == 'put' then
    value = word
  elseif op == 'set_if_not_exists' then
    met, value = not now, word
  elseif op == 'compare_and_set' then
    met, value = now == word, ARGV[at + 3]
  elseif op == 'compare_and_delete' then
    met = now == word
  elseif op == 'increment' then
    value, problem = increased(now, word)
  elseif op ~= 'delete' then
    return redis.error_reply('ERR operation ' .. op .. ' is unknown')
  end
  if problem then
    return redis.error_reply('POOLMAPVALUE ' .. problem)
  end
  if met and (now or value) then
    strings[key] = value
    kind = value and 'grow' or kind
    added = added + ((value and not now) and 1 or 0)
    if not is_changed[key] then
      is_changed[key] = true
      changed[#changed + 1] = key
    end
  end
  answer[#answer + 1] = met and '1' or '0'
  answer[#answer + 1] = op ~= 'put' and now
  at = at + 2 + words_of(op)
end
if #changed == 0 then
  answer[1], answer[2] = whole(revision), stamp
  return answer
end
if added > 0 and count() + added > tonumber(items_max) then
  return redis.error_reply('POOLMAPFULL ' .. count() .. ' ' .. items_max)
end

local edits, fields, gone = {}, {}, {}
for i, key in ipairs(changed) do
  local value = strings[key]
  if value then
    edits[i] = '+' .. #key .. ':' .. key .. #value .. ':' .. value
    fields[#fields + 1] = '=' .. key
    fields[#fields + 1] = value
  else
    edits[i] = '-' .. #key .. ':' .. key
    gone[#gone + 1] = '=' .. key
  end
end
local until_ms = live(life)
if not until_ms then
  return foreign(maps)
end
commit(edits, kind, until_ms, fields)
for key in pairs(had_list) do
  if is_changed[key] then
    redis.call('ZREMRANGEBYLEX', lists, span(head_of(key), ':'))
    redis.call('ZREMRANGEBYLEX', lists, span(index_head(key), 'g'))
  end
end
if #gone > 0 then
  redis.call('HDEL', data, unpack(gone))
end
if kind == 'shrink' then
  settle()
end
answer[1], answer[2] = whole(revision), stamp
return answer
