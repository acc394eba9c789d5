--[[
reap: read the next keys of a fenced identity; when it owns nothing any more, forget it.

KEYS[1] lane       hash    stamp, counters, ttl
KEYS[2] keepalive  zset    identity -> by when the reaper must have gone on, in lease time
KEYS[3] cleanup    hash    identity -> claim, later done
KEYS[4] jobs       hash    key -> record
KEYS[5] handlers   hash    name -> options
KEYS[6] owned      set     keys it runs
KEYS[7] stream     stream  starts it had not acknowledged
KEYS[8] signal     stream  its signals
KEYS[9] deaths     zset    PROCESS.MS -> when it died; see fence
ARGV[1] generation  str
ARGV[2] identity     str   id.n
ARGV[3] claim        str   holder|fence|alive|culprit[.bits]
ARGV[4] reap_ms      int   > 0
ARGV[5] keys_max     int   how many at most
ARGV[6] after        str   epoch of a start: those up to it could not be moved; 0: from the first one

Uses     lane, ttl, lease, record, marks
Returns  epoch of the last start read, or 0; then (key, record without void marks, options) each, or FORGOTTEN alone:
         all is done
Errors   POOLDATALOST <lane>, POOLGONE <claim> (another reaper holds it)
Cost     O(keys)
Why Lua  work first, registration last: it may be forgotten only in the step that saw it own nothing.
]]
if redis.call('HGET', cleanup, identity) ~= claim then
  return redis.error_reply('POOLGONE ' .. claim)
end
redis.call('XLEN', stream)
redis.call('XLEN', signal)
redis.call('SCARD', owned)
redis.call('HLEN', jobs)
redis.call('HLEN', handlers)
redis.call('ZCARD', deaths)
redis.call('ZREM', keepalive, '\n')
redis.call('ZADD', keepalive, lease_now + reap_ms, identity)

local answers = { '0' }
local function append(...)
  for _, value in ipairs({ ... }) do
    answers[#answers + 1] = value
  end
end
-- What its indexes name but its records do not confirm is only an index entry: drop it.
local function add(key, state, drop)
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  if text and not r then
    append(key, text, '')
  elseif r and r[OWNER] == identity and r[STATE] == state then
    append(key, judged(text, r), redis.call('HGET', handlers, r[HANDLER]) or '')
  else
    drop()
  end
end
for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. after .. '-0', '+', 'COUNT', keys_max)) do
  answers[1] = string.match(entry[1], '^%d+')
  add(entry[2][2] or '', 'P', function() redis.call('XDEL', stream, entry[1]) end)
end
local room = keys_max - (#answers - 1) / 3
if room > 0 then -- beside starts that cannot be moved, too
  for _, key in ipairs(redis.call('SRANDMEMBER', owned, room)) do
    add(key, 'R', function() redis.call('SREM', owned, key) end)
  end
end
if #answers == 1 and redis.call('XLEN', stream) + redis.call('SCARD', owned) == 0 then
  redis.call('DEL', stream, signal)
  redis.call('HSET', cleanup, identity, 'done')
  redis.call('ZADD', keepalive, lease_now + 10 * ttl_ms, identity) -- a late copy of a call is younger
  append('FORGOTTEN')
end
return answers
