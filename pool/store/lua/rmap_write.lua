--[[
rmap_write: change keys of a replicated map and log the change, as one revision.

KEYS[1] config  hash    the pool's incarnation
KEYS[2] meta    hash    incarnation, revision and stamp of the map's last write
KEYS[3] items   hash    the map itself
KEYS[4] log     stream  one delta per write, its id is <revision>-0
ARGV[1] incarnation  str  the pool's, as the caller knows it
ARGV[2] deltas_max   int  > 0; how many deltas the log keeps, at least
ARGV[...] ops        per operation: its name, the key, and its own words (see OPS)

Returns  [revision, stamp, met, previous, met, previous ...]: met is '1' if the operation's condition
         held, else '0' and it changed nothing; previous is nil where the key was absent.  Operations
         see the effect of those before them.  All that changed is one revision; if nothing did, the
         revision is the present one and nothing is written.
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
         OOM                    the server is full and a key would be set; deletes still succeed
         WRONGTYPE              foreign data under one of the keys
Cost     O(operations); 3 commands, and for each operation 1 read and 1 write
Why Lua  compare, apply, count and log are one step, else two writers could log in another order
         than they wrote, and replicas would drift for ever.

The log is trimmed by length: it is a way to be quick, not the truth.  A replica that falls behind it
meets a delta that does not continue its own history, and takes a snapshot.
]]
-- Name -> how many words follow the key; and, from the value now (false: absent) and those words,
-- whether the condition holds and which value the key then has (false: none).
local OPS = {
  set = { 1, function(_, value) return true, value end },
  set_if_not_exists = { 1, function(now, value) return not now, value end },
  compare_and_set = { 2, function(now, expected, value) return now == expected, value end },
  delete = { 0, function() return true, false end },
  compare_and_delete = { 1, function(now, expected) return now == expected, false end },
}

if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local last = redis.call('HMGET', meta, 'incarnation', 'revision', 'stamp')

-- Decide.  `values` is what the touched keys will hold, `changed` names those to write, in order.
local answer, values, changed, is_changed, sets = { '', '' }, {}, {}, {}, false
local at = 3
while at <= #ARGV do
  local op, key = OPS[ARGV[at]], ARGV[at + 1]
  if not op or #ARGV < at + 1 + op[1] then
    return redis.error_reply('ERR operation ' .. ARGV[at] .. ' is unknown or lacks words')
  end
  local now = values[key]
  if now == nil then
    now = redis.call('HGET', items, key)
    values[key] = now
  end
  local met, value = op[2](now, ARGV[at + 2], ARGV[at + 3])
  if met and (now or value) then
    values[key] = value
    sets = sets or value ~= false
    if not is_changed[key] then
      is_changed[key] = true
      changed[#changed + 1] = key
    end
  end
  answer[#answer + 1] = met and '1' or '0'
  answer[#answer + 1] = now
  at = at + 2 + op[1]
end
local before_revision, before_stamp = last[2] or '0', last[3] or '0'
if #changed == 0 then
  answer[1], answer[2] = before_revision, before_stamp
  return answer
end

local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local revision = tonumber(before_revision)
if last[1] ~= incarnation then
  -- The map's first write in this incarnation: above all that a reader may have seen of an older
  -- one, so that a reader that waits at such a position always wakes.
  local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
  revision = math.max(revision, logged, micros - 1)
end
revision = string.format('%.0f', revision + 1)
local stamp = string.format('%.0f', math.max(tonumber(before_stamp) + 1, micros))

-- An edit is '+' key value or '-' key, each string behind its length: keys and values are any bytes.
local edits = {}
for i, key in ipairs(changed) do
  local value = values[key]
  if value then
    edits[i] = '+' .. #key .. ':' .. key .. #value .. ':' .. value
  else
    edits[i] = '-' .. #key .. ':' .. key
  end
end

if not sets then
  -- Deletes succeed on a full server: memory is checked only until a script's first write.
  redis.call('HDEL', meta, '-')
end
-- The log comes first: it is the write that a full server refuses, and then nothing is half done.
redis.call('XADD', log, 'MAXLEN', '~', deltas_max, revision .. '-0', 'incarnation', incarnation,
  'stamp', stamp, 'after', before_revision .. '-' .. before_stamp, 'edits', table.concat(edits))
redis.call('HSET', meta, 'incarnation', incarnation, 'revision', revision, 'stamp', stamp)
for _, key in ipairs(changed) do
  if values[key] then
    redis.call('HSET', items, key, values[key])
  else
    redis.call('HDEL', items, key)
  end
end
answer[1], answer[2] = revision, stamp
return answer
