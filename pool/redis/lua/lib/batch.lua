--[[
batch: read and write each structure once for all items of a call, instead of once for each.

Needs  key jobs.  Gives  read_records(a, step), record_of(key), later(command, name, member[, value]),
write_batch().

Lua is fast and a command costs about as much as all of an item's Lua, so 32 jobs' ends are four commands
with 32 members each.  Removals are sent before additions: an item may take its key out of a structure and
put it back, never the other way round.  Items of different keys touch different members, so their order
does not matter; a key that comes twice in a call finds written what its first turn meant to write.

Nothing of this is written if the script raises before, so what may raise, or is read by others first
(a start in its stream), goes out at once.
]]
local ARGS_MAX = 1000 -- unpack() has room for about 8000; even, so that pairs stay together
local batched = {} -- command -> name of a structure -> what follows in the command
local records, had_turn, is_alone = {}, {}, false

-- For ZADD the member is the score and the value the member, as the command has them.
local function later(command, name, member, value)
  if is_alone then
    -- Nothing to collect, and to collect it would cost a call of one item a tenth of its time.
    if value then
      redis.call(command, name, member, value)
    else
      redis.call(command, name, member)
    end
    return
  end
  local names = batched[command]
  if not names then
    names = {}
    batched[command] = names
  end
  local words = names[name]
  if not words then
    words = {}
    names[name] = words
  end
  words[#words + 1] = member
  if value then
    words[#words + 1] = value
  end
end

local function write_batch()
  if not next(batched) then
    return
  end
  for _, command in ipairs({ 'XDEL', 'ZREM', 'SREM', 'HDEL', 'HSET', 'ZADD', 'SADD' }) do
    for name, words in pairs(batched[command] or {}) do
      for i = 1, #words, ARGS_MAX do
        redis.call(command, name, unpack(words, i, math.min(i + ARGS_MAX - 1, #words)))
      end
    end
  end
  batched = {}
end

-- The records of all items, whose keys stand in every step-th argument.
local function read_records(first, step)
  local keys = {}
  for a = first, #ARGV, step do
    keys[#keys + 1] = ARGV[a]
  end
  is_alone = #keys == 1
  for i = 1, #keys, ARGS_MAX do
    local texts = redis.call('HMGET', jobs, unpack(keys, i, math.min(i + ARGS_MAX - 1, #keys)))
    for n, text in ipairs(texts) do
      records[keys[i + n - 1]] = text
    end
  end
end

local function record_of(key)
  if had_turn[key] then
    write_batch()
    return redis.call('HGET', jobs, key)
  end
  had_turn[key] = true
  return records[key]
end
