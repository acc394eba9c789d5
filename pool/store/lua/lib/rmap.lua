--[[
rmap: what each write of a replicated map begins and ends with.

Needs  at, maps_time; keys config, maps, data, lists, log, due; arguments incarnation, name, nonce.
Gives  begin(keys): read where the map is, and those strings; then place, is_expired, answer_at(), value_of(key),
       head_of(key), index_head(key), span(head, after), count(), live(ttl_ms, life),
       commit(edits, kind, ends, appended, fields), settle(), packed(text).

A key holds a string (in data, as the field =key) or a list (in lists), never both.  The items of all lists of a
map stand in one sorted set, in the order of their bytes: l<bytes of the key>:<key><16 digits><value>; the digits
grow with each item ever appended.  In the same set i<bytes of the key>:<key><16 hex digits of the value's
SHA-1><16 digits> finds the digits of a value without reading the list.

A stamp is made of the one before and of what the writer has drawn, so it names a whole history: two that have
parted never have the same one again, whatever any clock says, and though one writer's call was done in both.
]]
local NONE = { incarnation = '', revision = 0, stamp = '0', appended = 0, ends = 0, cut = 0, half = 0, bytes = 0 }
local LOG_BYTES = 4194304 -- of one half of the log
local LOG_DELTAS = 512
local READING_MS = 60000 -- how long the log of a map that has ended is kept: who follows it has read it by then
local place, strings, is_expired, now_ms, clock_ms, has_lists = NONE, {}, false, nil, nil, nil

local function begin(keys)
  if redis.call('HGET', config, 'incarnation') ~= incarnation then
    return redis.error_reply('POOLDATALOST ' .. config)
  end
  local fields = { 'at' }
  for i, key in ipairs(keys) do
    fields[i + 1] = '=' .. key
  end
  local had = redis.call('HMGET', data, unpack(fields))
  place = place_of(had[1]) or NONE -- junk: begin anew, as in a new incarnation; whoever follows takes a snapshot
  if place.ends > 0 then
    redis.call('ZCARD', due) -- foreign data there must fail before the first write
    now_ms, clock_ms = maps_time()
    -- Its time is up and nobody has emptied it yet: it counts as empty, and whoever writes first says so.
    is_expired = place.ends <= now_ms
  end
  for i, key in ipairs(keys) do
    strings[key] = not is_expired and had[i + 1]
  end
end

local function answer_at()
  return whole(place.revision), place.stamp
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

local function list_of(key)
  if has_lists == nil then
    has_lists = not is_expired and redis.call('ZCARD', lists) > 0
  end
  if not has_lists then
    return false
  end
  local head = head_of(key)
  local members = redis.call('ZRANGEBYLEX', lists, span(head, ':'))
  if #members == 0 then
    return false
  end
  for i, member in ipairs(members) do
    members[i] = string.sub(member, #head + 17)
  end
  return members
end

-- A string, a table (a list), or false.
local function value_of(key)
  return strings[key] or list_of(key)
end

local function count()
  return is_expired and 0 or math.max(0, redis.call('HLEN', data) - 1) + redis.call('ZCARD', lists) / 2
end

-- The highest revision of any map that has ended.  Foreign data there fail alone what is about to write it.
local function floor()
  local had = redis.pcall('HGET', maps, 'floor')
  return type(had) == 'string' and tonumber(string.match(had, '^%d+$')) or 0
end

local function begin_anew(revision)
  -- Above all that a reader may have seen of what was, so that one that waits at such a position always wakes.
  local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  local logged = newest and tonumber(string.match(newest[1], '^%d+')) or 0
  local time = redis.call('TIME')
  local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return math.max(revision, logged, floor(), micros - 1)
end

-- When the map's time will be up.  life: 0 counted from the first write on, 1 from this one, 2 ttl_ms is that time
-- itself, by the server's clock.
local function live(ttl_ms, life)
  local ends = is_expired and 0 or place.ends
  if ttl_ms == 0 or (life == 0 and ends > 0) then
    return ends
  end
  if not now_ms then
    now_ms, clock_ms = maps_time()
  end
  redis.call('ZCARD', due) -- foreign data there must fail before the first write
  return math.max(1, now_ms + (life == 2 and ttl_ms - clock_ms or ttl_ms))
end

-- One revision.  An edit is one letter and its strings, each behind its length: they are any bytes.  kind: grow,
-- shrink, reset, or end, which leaves nothing of the map but its log.  fields: what to set beside `at`.
local function commit(edits, kind, ends, appended, fields)
  local is_emptied = kind == 'reset' or kind == 'end'
  if is_expired and not is_emptied then
    table.insert(edits, 1, '*')
  end
  local was, text = place, table.concat(edits)
  local revision, cut, half, bytes = was.revision, was.cut, was.half, was.bytes
  if was.incarnation ~= incarnation then
    revision = begin_anew(revision)
  end
  revision = revision + 1
  local ended = kind == 'end' and math.max(redis.call('HLEN', maps) > 0 and floor() or 0, revision)
  local stamp = string.sub(redis.sha1hex(was.stamp .. nonce), 1, 16)
  if kind ~= 'grow' or name == 'workers' then
    -- What removes succeeds on a full server: memory is checked only until a script's first write.  So
    -- does every write of the pool's own map: who joins a full server, or leaves it, says so there.
    redis.call('HDEL', data, '-')
  end
  local size = #text + 100
  if bytes + size > LOG_BYTES or revision - half >= LOG_DELTAS then
    -- The older half goes, and all that is older than this delta if it is a half by itself.
    cut, half, bytes = size > LOG_BYTES and revision or half, revision, 0
  end
  -- The log comes first: it is the write that a full server refuses, and then nothing is half done.
  local delta = { 'incarnation', incarnation, 'stamp', stamp, 'after', whole(was.revision) .. '-' .. was.stamp,
    'edits', text }
  local logged = redis.pcall('XADD', log, 'MINID', '~', whole(cut) .. '-0', whole(revision) .. '-0', unpack(delta))
  if type(logged) == 'table' and logged.err then
    -- A write of before was broken off behind this, by a right that its user lacked: above what it logged.
    revision = begin_anew(revision) + 1
    redis.call('XADD', log, whole(revision) .. '-0', unpack(delta))
  end
  if was.revision == 0 then
    redis.call('PERSIST', log) -- of a map that had ended
  end
  if is_expired or is_emptied then
    redis.call('UNLINK', data, lists)
  end
  place = {
    incarnation = incarnation,
    revision = revision,
    stamp = stamp,
    appended = math.max(appended or 0, was.appended),
    ends = ends,
    cut = cut,
    half = half,
    bytes = bytes + size,
  }
  if kind == 'end' then
    redis.call('ZREM', due, name)
    redis.call('PEXPIRE', log, READING_MS)
    redis.call('HSET', maps, 'floor', whole(math.max(ended, revision)))
    return
  end
  redis.call('HSET', data, 'at', text_of_place(place), unpack(fields or {}))
  if ends ~= was.ends then
    if ends > 0 then
      redis.call('ZADD', due, whole(ends), name)
    else
      redis.call('ZREM', due, name)
    end
  end
end

-- After what removes: an empty map has no time left to count, or what is written much later would die with what was.
local function settle()
  if place.ends > 0 and redis.call('HLEN', data) <= 1 and redis.call('EXISTS', lists) == 0 then
    place.ends = 0
    redis.call('HSET', data, 'at', text_of_place(place))
    redis.call('ZREM', due, name)
  end
end

local function packed(text)
  return #text .. ':' .. text
end
