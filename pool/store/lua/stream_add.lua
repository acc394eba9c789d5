--[[
stream_add: append an event to a stream; its length cap and its end are kept in the same step.

KEYS[1] events  stream  n number, e event, p payload, t topic (if it has one) per event
KEYS[2] meta    hash    n: events ever added; trimmed: the newest id that a cap took; missed:GROUP: how
                        many of those the group had not been given
ARGV[1] event       bytes
ARGV[2] payload     bytes
ARGV[3] length_max  int    events kept; 0: all
ARGV[4] ttl_ms      int    how long the stream lives; 0: for ever
ARGV[5] flags       str    s: every event prolongs its life; x: only if the stream exists; t: has a topic
ARGV[6] topic       bytes

Returns  bytes   the event's id; nil: there is no stream, and x was asked
Errors   OOM        the server is full; nothing was written
         WRONGTYPE  foreign data under one of the keys
Cost     O(1); 4 commands, 2 more with a TTL, 4 more where a cap takes an event, of which it reads the body
Why Lua  number and event are one step, so that a reader sees by the numbers what it has missed; a cap
         that takes what a group was not given yet says so to that group.

A cap is exact, but for one that was lowered: each further event takes TRIM_MAX at most.
]]
local TRIM_MAX = 16
local length, existed = redis.call('XLEN', events), redis.call('EXISTS', events) == 1
if string.find(flags, 'x', 1, true) and not existed then
  return false
end
local n = existed and tonumber(redis.call('HGET', meta, 'n') or '0') or 0
n = string.format('%.0f', n + 1)
local id
if string.find(flags, 't', 1, true) then
  id = redis.call('XADD', events, '*', 'n', n, 'e', event, 'p', payload, 't', topic)
else
  id = redis.call('XADD', events, '*', 'n', n, 'e', event, 'p', payload)
end
if not existed then
  redis.call('DEL', meta)  -- of a stream that somebody deleted
end
redis.call('HSET', meta, 'n', n)

local over = length + 1 - length_max
if length_max > 0 and over > 0 then
  local function parts(text)
    local ms, seq = string.match(text, '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(seq)
  end
  local function is_behind(one, other)
    local ms, seq = parts(one)
    local other_ms, other_seq = parts(other)
    return ms > other_ms or (ms == other_ms and seq > other_seq)
  end
  over = math.min(over, TRIM_MAX)
  local taken = redis.call('XRANGE', events, '-', '+', 'COUNT', over)
  redis.call('XTRIM', events, 'MAXLEN', length + 1 - over)
  redis.call('HSET', meta, 'trimmed', taken[#taken][1])
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local facts = {}
    for i = 1, #info, 2 do
      facts[info[i]] = info[i + 1]
    end
    local missed = 0
    for _, entry in ipairs(taken) do
      if is_behind(entry[1], facts['last-delivered-id']) then
        missed = missed + 1
      end
    end
    if missed > 0 then
      redis.call('HINCRBY', meta, 'missed:' .. facts['name'], missed)
    end
  end
end

if ttl_ms > 0 then
  for _, key in ipairs({ events, meta }) do
    if string.find(flags, 's', 1, true) then
      redis.call('PEXPIRE', key, ttl_ms)
    else
      redis.call('PEXPIRE', key, ttl_ms, 'NX')
    end
  end
end
return id
