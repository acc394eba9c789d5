--[[
rmap_write: change strings of a replicated map and log the change, as one revision.

Uses    rmap
KEYS[1] config  hash    the pool's incarnation
KEYS[2] meta    hash    incarnation, revision and stamp of the map's last write
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
ARGV[...] ops        per operation: its name, the key, and its own words (see OPS)

Returns  [revision, stamp, met, previous, met, previous ...]: met is '1' if the operation's condition
         held, else '0' and it changed nothing; previous is a string, an array (a list) or nil.
         Operations see the effect of those before them.  All that changed is one revision; if
         nothing did, the revision is the present one and nothing is written.
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         POOLMAPFULL <items>    a key would be added, and the map holds items_max already
         POOLMAPVALUE <why>     increment of what is not a whole number, or beyond 2^53
         OOM                    the server is full and a key would be set, but in the pool's own map; deletes
                                still succeed
         WRONGTYPE              foreign data under one of the keys
Cost     O(operations), and O(items) of each list that is replaced; 6 commands, for each operation 1
         read and 1 write, 2 more where there are lists, 1 that removes, 1 with a time to live
Why Lua  compare, apply, count and log are one step, else two writers could log in another order
         than they wrote, and replicas would drift for ever.

The log is trimmed by length: it is a way to be quick, not the truth.  A replica that falls behind it
meets a delta that does not continue its own history, and takes a snapshot.
]]
local WHOLE_MAX = 9007199254740991 -- beyond it a double skips numbers

local function increased(now, by)
  local number = 0
  if now then
    number = type(now) == 'string' and string.match(now, '^-?%d+$') and tonumber(now)
    if not number or number > WHOLE_MAX or number < -WHOLE_MAX then
      return nil, 'it holds no whole number within 2^53'
    end
  end
  number = number + tonumber(by)
  if number > WHOLE_MAX or number < -WHOLE_MAX then
    return nil, 'the sum is beyond 2^53'
  end
  return string.format('%.0f', number)
end

-- Name -> how many words follow the key; and, from the value now (false: absent) and those words,
-- whether the condition holds, which value the key then has (false: none), and what is wrong.
local OPS = {
  set = { 1, function(_, value) return true, value end },
  set_if_not_exists = { 1, function(now, value) return not now, value end },
  compare_and_set = { 2, function(now, expected, value) return now == expected, value end },
  delete = { 0, function() return true, false end },
  compare_and_delete = { 1, function(now, expected) return now == expected, false end },
  increment = { 1, function(now, by) return true, increased(now, by) end },
}

-- Decide.  `values` is what the touched keys will hold, `changed` names those to write, in order.
local answer, values, had_list, changed, is_changed = { '', '' }, {}, {}, {}, {}
local is_growing, added, at = false, 0, 7
while at <= #ARGV do
  local op, key = OPS[ARGV[at]], ARGV[at + 1]
  if not op or #ARGV < at + 1 + op[1] then
    return redis.error_reply('ERR operation ' .. ARGV[at] .. ' is unknown or lacks words')
  end
  local now = values[key]
  if now == nil then
    now = value_of(key)
    values[key] = now
    had_list[key] = type(now) == 'table'
  end
  local met, value, problem = op[2](now, ARGV[at + 2], ARGV[at + 3])
  if problem then
    return redis.error_reply('POOLMAPVALUE ' .. problem)
  end
  if met and (now or value) then
    values[key] = value
    is_growing = is_growing or value ~= false
    added = added + ((value and not now) and 1 or 0)
    if not is_changed[key] then
      is_changed[key] = true
      changed[#changed + 1] = key
    end
  end
  answer[#answer + 1] = met and '1' or '0'
  answer[#answer + 1] = now
  at = at + 2 + op[1]
end
if #changed == 0 then
  answer[1], answer[2] = before_revision, before_stamp
  return answer
end
if added > 0 and count() + added > items_max then
  return redis.error_reply('POOLMAPFULL ' .. count() .. ' ' .. items_max)
end

local edits = {}
for i, key in ipairs(changed) do
  local value = values[key]
  edits[i] = value and '+' .. packed(key) .. packed(value) or '-' .. packed(key)
end
answer[1], answer[2] = commit(edits, is_growing)
for _, key in ipairs(changed) do
  if had_list[key] then
    redis.call('ZREMRANGEBYLEX', lists, span(key))
    redis.call('ZREMRANGEBYLEX', index, index_span(key))
  end
  if values[key] then
    redis.call('HSET', items, key, values[key])
  else
    redis.call('HDEL', items, key)
  end
end
extend(is_growing)
return answer
