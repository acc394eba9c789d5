--[[
rmap: what each write of a replicated map begins and ends with.

Needs  keys config, meta, items, lists, index, log, due; arguments incarnation, name, deltas_max; and for
       extend, ttl_ms and is_sliding.
Gives  value_of(key), span(key), index_span(key), head_of(key), count(), commit(edits, is_growing), extend(is_growing),
       empty(), packed(text), is_expired, last, before_revision, before_stamp.

A key holds a string (in items) or a list (in lists and index), never both.  The members of all lists of a
map stand in one sorted set, in the order of their bytes: <bytes of the key>:<key><16 digits><value>; the
digits grow with each item ever appended.  index finds the digits of a value without reading the list:
<bytes of the key>:<key><16 hex digits of the value's SHA-1><16 digits>.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local last = redis.call('HMGET', meta, 'incarnation', 'revision', 'stamp', 'appended', 'is_destroyed')
local junk = string.gsub((last[2] or '0') .. (last[3] or '0') .. (last[4] or '0'), '%d', '')
if junk ~= '' or math.max(#(last[2] or ''), #(last[3] or ''), #(last[4] or '')) > 16 then
  last = {} -- begin anew, as in a new incarnation; whoever follows takes a snapshot
end
local before_revision, before_stamp = last[2] or '0', last[3] or '0'
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(micros / 1000)
local ends_ms = redis.call('ZSCORE', due, name)
-- Its time is up and nobody has emptied it yet: it counts as empty, and whoever writes first says so.
local is_expired = ends_ms and tonumber(ends_ms) <= now_ms

local function head_of(key)
  return #key .. ':' .. key
end

local function span(key)
  local head = head_of(key)
  return '[' .. head, '(' .. head .. ':' -- digits come next, and ':' follows '9'
end

local function index_span(key)
  local head = head_of(key)
  return '[' .. head, '(' .. head .. 'g' -- as above, with 'f' for '9'
end

local has_lists = nil -- not looked yet
local function list_of(key)
  if has_lists == nil then
    has_lists = redis.call('ZCARD', lists) > 0
    redis.call('ZCARD', index) -- foreign data there must fail before the first write
  end
  if not has_lists then
    return false
  end
  local low, high = span(key)
  local members = redis.call('ZRANGEBYLEX', lists, low, high)
  if #members == 0 then
    return false
  end
  local from = #head_of(key) + 17
  for i, member in ipairs(members) do
    members[i] = string.sub(member, from)
  end
  return members
end

-- A string, a table (a list), or false.
local function value_of(key)
  if is_expired then
    return false
  end
  return redis.call('HGET', items, key) or list_of(key)
end

local function count()
  return is_expired and 0 or redis.call('HLEN', items) + redis.call('ZCARD', lists)
end

local function empty()
  redis.call('UNLINK', items, lists, index)
  redis.call('ZREM', due, name)
end

-- One revision.  An edit is one letter and its strings, each behind its length: they are any bytes.
local function commit(edits, is_growing)
  if is_expired then
    table.insert(edits, 1, '*')
  end
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
  if not is_growing or name == 'workers' then
    -- What removes succeeds on a full server: memory is checked only until a script's first write.  So
    -- does every write of the pool's own map: who joins a full server, or leaves it, says so there.
    redis.call('HDEL', meta, '-')
  end
  -- The log comes first: it is the write that a full server refuses, and then nothing is half done.
  local delta = { 'incarnation', incarnation, 'stamp', stamp, 'after', before_revision .. '-' .. before_stamp,
    'edits', table.concat(edits) }
  local logged = redis.pcall('XADD', log, 'MAXLEN', '~', deltas_max, revision .. '-0', unpack(delta))
  if type(logged) == 'table' and logged.err then
    -- A write of before was broken off behind this, by a right that its user lacked: above what it logged.
    local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
    revision = string.format('%.0f', math.max(micros, newest and tonumber(string.match(newest[1], '^%d+')) + 1 or 0))
    redis.call('XADD', log, 'MAXLEN', '~', deltas_max, revision .. '-0', unpack(delta))
  end
  redis.call('HSET', meta, 'incarnation', incarnation, 'revision', revision, 'stamp', stamp)
  if last[5] then -- destroyed, and now it lives again
    redis.call('HDEL', meta, 'is_destroyed')
    redis.call('PERSIST', meta)
    redis.call('PERSIST', log)
  end
  if is_expired then
    empty()
  end
  return revision, stamp
end

-- After a write that is not a reset: when the map's time will be up.  An empty one has no time left to
-- count, or what is written much later would die with what was.
local function extend(is_growing)
  if not is_growing and redis.call('EXISTS', items, lists) == 0 then
    redis.call('ZREM', due, name)
  elseif ttl_ms > 0 then
    local until_ms = string.format('%.0f', now_ms + ttl_ms)
    if is_sliding == 1 then
      redis.call('ZADD', due, until_ms, name)
    else
      redis.call('ZADD', due, 'NX', until_ms, name)
    end
  end
end

local function packed(text)
  return #text .. ':' .. text
end
