--[[
rmap: what each write of a replicated map begins and ends with.

Needs  at, typed, maps_time, appended; keys config, maps, data, lists, log, due; arguments generation, name, nonce.
Gives  begin(keys): read where the map is, and those strings; then is_expired, revision, stamp, ends, strings,
       size_of(key), span(head, after), head_of(key), index_head(key), count(), live(life),
       commit(edits, kind, ends, fields), note(), settle().

A key holds a string (in data, as the field =key) or a list (in lists), never both.  The items of all lists of a
map stand in one sorted set, in the order of their bytes: l<bytes of the key>:<key><19 digits><value>; the digits
grow: they are the revision that appended the item, and which it was of that.  In the same set
i<bytes of the key>:<key><16 hex digits of the value's SHA-1><19 digits> finds the digits of a value without
reading the list.

A stamp is made of the one before and of what the writer has drawn, so it names a whole history: two that have
parted never have the same one again, whatever any clock says, and though one writer's call was done in both.
]]
local LOG_BYTES = 8388608
local LOG_DELTAS = 1024
local READING_MS = 60000 -- how long the log of a map that has ended is kept: who follows it has read it by then
-- Of what is junk nothing counts: the map begins anew, as in a new generation; whoever follows takes a snapshot.
local from, revision, stamp, ends, strings, is_expired = nil, 0, '0', 0, {}, false
local now_ms, clock_ms, has_lists

local function begin(keys)
  if redis.call('HGET', config, 'incarnation') ~= generation then
    return redis.error_reply('POOLDATALOST ' .. config)
  end
  local fields = { 'at' }
  for i, key in ipairs(keys) do
    fields[i + 1] = '=' .. key
  end
  local had = redis.call('HMGET', data, unpack(fields))
  local by, number, word, time = read_place(had[1])
  if by then
    from, revision, stamp, ends = by, number, word, time
    if ends > 0 then
      now_ms, clock_ms = maps_time()
      if not now_ms then
        return foreign(maps)
      end
      -- Its time is up and nobody has emptied it yet: it counts as empty, and whoever writes first says so.
      is_expired = ends <= now_ms
    end
  end
  for i, key in ipairs(keys) do
    strings[key] = not is_expired and had[i + 1]
  end
end

local function head_of(key)
  return 'l' .. #key .. ':' .. key
end

local function index_head(key)
  return 'i' .. #key .. ':' .. key
end

local function span(head, after)
  return '[' .. head, '(' .. head .. after -- what comes after the highest digit
end

-- How many items the key's list has, or false: a list is read by nobody who replaces it.
local function size_of(key)
  if has_lists == nil then
    has_lists = not is_expired and redis.call('ZCARD', lists) > 0
  end
  if not has_lists then
    return false
  end
  local size = redis.call('ZLEXCOUNT', lists, span(head_of(key), ':'))
  return size > 0 and size
end

local function count()
  return is_expired and 0 or math.max(0, redis.call('HLEN', data) - 1) + redis.call('ZCARD', lists) / 2
end

-- The highest revision of any map that has ended.  Foreign data there fail alone what is about to write it.
local function floor()
  local had = typed('HGET', maps, 'floor')
  return type(had) == 'string' and tonumber(string.match(had, '^%d+$')) or 0
end

local function begin_anew()
  -- Above all that a reader may have seen of what was, so that one that waits at such a position always wakes.
  local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
  local time = redis.call('TIME')
  local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  -- And above what was appended, or what comes now would stand in front of it: where somebody deleted both the
  -- log and where the map was, and the clock was set back.
  local appended = redis.call('EXISTS', lists) == 1 and newest_item(lists) or 0
  return math.max(revision, logged, floor(), appended, micros - 1)
end

-- When the map's time will be up, see `life` in rmap_write; nil if that cannot be read.
local function live(life)
  local until_ms = is_expired and 0 or ends
  local ms, how = string.match(life, '^(%d+) (%d)$')
  if not ms or (how == '0' and until_ms > 0) then
    return until_ms
  end
  if not now_ms then
    now_ms, clock_ms = maps_time()
  end
  return now_ms and math.max(1, now_ms + (how == '2' and ms - clock_ms or tonumber(ms)))
end

-- The place in `due` only finds what has ended: foreign data there fail nothing, and a probe puts it back.
local function note()
  if ends > 0 then
    redis.pcall('ZADD', due, whole(ends), name)
  else
    redis.pcall('ZREM', due, name)
  end
end

-- One revision.  An edit is one letter and its strings, each behind its length: they are any bytes.  kind: grow,
-- shrink, reset, or end, which leaves nothing of the map but its log.  fields: what to set beside `at`.
local function commit(edits, kind, until_ms, fields)
  local is_emptied = kind == 'reset' or kind == 'end'
  if is_expired and not is_emptied then
    table.insert(edits, 1, '*')
  end
  local text, after = table.concat(edits), string.format('%d-%s', revision, stamp)
  if from ~= generation then
    revision = begin_anew()
  end
  revision = revision + 1
  stamp = string.sub(redis.sha1hex(stamp .. nonce), 1, 16)
  local floor_then = kind == 'end' and math.max(floor(), revision)
  if kind ~= 'grow' or name == 'workers' then
    -- What removes succeeds on a full server: memory is checked only until a script's first write.  So
    -- does every write of the pool's own map: who joins a full server, or leaves it, says so there.
    redis.call('HDEL', data, '-')
  end
  -- As many as would be so many bytes if all were like this one.
  local kept = math.max(1, math.min(LOG_DELTAS, math.floor(LOG_BYTES / (#text + 100))))
  -- The log comes first: it is the write that a full server refuses, and then nothing is half done.
  local number = whole(revision)
  local head = generation .. ' ' .. stamp .. ' ' .. after
  local logged = redis.pcall('XADD', log, 'MAXLEN', '~', kept, number .. '-0', 'at', head, 'edits', text)
  if type(logged) == 'table' and logged.err then
    -- A write of before was broken off behind this, by a right that its user lacked: above what it logged.
    revision = begin_anew() + 1
    number = whole(revision)
    redis.call('XADD', log, number .. '-0', 'at', head, 'edits', text)
  end
  if not from then
    redis.call('PERSIST', log) -- of a map that had ended
  end
  if is_expired or is_emptied then
    redis.call('UNLINK', data, lists)
  end
  if kind == 'end' then
    redis.pcall('ZREM', due, name)
    redis.call('PEXPIRE', log, READING_MS)
    redis.call('HSET', maps, 'floor', whole(math.max(floor_then, revision)))
    return
  end
  local at = string.format('%s %s %s %d', generation, number, stamp, until_ms)
  redis.call('HSET', data, 'at', at, unpack(fields or {}))
  if until_ms ~= ends then
    ends = until_ms
    note()
  end
end

-- After what removes: an empty map has no time left to count, or what is written much later would die with what was.
local function settle()
  if ends > 0 and redis.call('HLEN', data) <= 1 and redis.call('EXISTS', lists) == 0 then
    redis.call('HSET', data, 'at', string.format('%s %d %s 0', generation, revision, stamp))
    redis.pcall('ZREM', due, name)
  end
end
