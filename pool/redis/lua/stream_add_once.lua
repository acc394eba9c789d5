--[[
stream_add_once: append an event to a stream, unless one was added under the same id of its caller's.

KEYS[1] events   stream  see stream_add
KEYS[2] meta     hash    see stream_add; now, seen: the time of what is remembered
KEYS[3] once     hash    once_id -> the id of its event
KEYS[4] ends_of  zset    once_id -> until when it is remembered, in that time
ARGV[1] event       bytes
ARGV[2] payload     bytes
ARGV[3] mark        str    see stream_add, as the next two
ARGV[4] topic       bytes
ARGV[5] limits      str
ARGV[6] once_id     bytes
ARGV[7] window_ms   int    how long it is remembered from now on, at least; a try with a shorter one shortens nothing

Uses     limits, ends, append
Returns  bytes   the event's id, of this try or of an earlier one; nil: there is no stream, and x was asked, or its end has passed
Errors   OOM        the server is full; nothing was written
         WRONGTYPE  foreign data under one of the keys
Cost     O(1); 7 commands beside stream_add's 2, and 2 more for FORGET_MAX that are forgotten
Why Lua  two tries of one call are one event, whoever comes first.

What is remembered is forgotten in a time that goes on with these very calls, by what passed since the one
before, and by STEP_MS at most: so no step of the server's clock forgets an id too early; one that is seldom
used keeps them for longer, and holds the fewer.  A stream that is made anew remembers nothing.
]]
local FORGET_MAX, STEP_MS = 16, 60000

local function whole(text)
  return text and #text <= 16 and tonumber(string.match(text, '^%d+$')) or 0
end

local was = redis.call('HGET', once, once_id)
redis.call('ZCARD', ends_of)
local had = redis.call('HMGET', meta, 'now', 'seen')
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A stream that was made since knows no time of ours: what is remembered is of another one.
local is_known = had[2] and (redis.call('XLEN', events) > 0 or redis.call('EXISTS', events) == 1)
local now = is_known and whole(had[1]) + math.max(0, math.min(clock - whole(had[2]), STEP_MS)) or 0
if was and is_known then
  -- A full server refuses it: whoever tries again wants the id, which stays for as long as it had been asked for.
  redis.pcall('ZADD', ends_of, 'GT', now + window_ms, once_id)
  return was
end
local id = append()
if type(id) ~= 'string' then
  return id
end
if not is_known then
  redis.call('DEL', once, ends_of)
  now = math.min(clock, STEP_MS)
end
redis.call('HSET', meta, 'now', string.format('%.0f', now), 'seen', string.format('%.0f', clock))
redis.call('HSET', once, once_id, id)
redis.call('ZADD', ends_of, now + window_ms, once_id)
local old = redis.call('ZRANGE', ends_of, '-inf', now, 'BYSCORE', 'LIMIT', 0, FORGET_MAX)
if #old > 0 then
  redis.call('ZREM', ends_of, unpack(old))
  redis.call('HDEL', once, unpack(old))
end
if ttl_ms > 0 then
  local ends = redis.call('PEXPIRETIME', meta)
  for _, key in ipairs({ once, ends_of }) do
    redis.call('PEXPIREAT', key, ends)
  end
end
return id
