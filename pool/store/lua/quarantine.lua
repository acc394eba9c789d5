--[[
quarantine: park a record that cannot be worked on, with the bytes as they are.

KEYS[1] lane       hash    counters
KEYS[2] jobs       hash    key -> record
KEYS[3] pending    zset    key -> by when its start must be acknowledged
KEYS[4] due        zset    k:KEY -> when
KEYS[5] payloads   hash    key -> payload
KEYS[6] blobs      hash    key -> hand-off state
KEYS[7] inbox      list    messages accepted for the key: none may reach the key's next job
KEYS[8] parked     zset    job id -> when it was parked
KEYS[9] letters    hash    job id -> dead letter
KEYS[10] journal   stream  abnormal edges
KEYS[11] holders_owned   set     owned:W of the worker it was found at, or that it names as its owner
KEYS[12] holders_stream  stream  stream:W of that worker
KEYS[13] unassigned      zset    unassigned:H of the handler that it names, if it can be read
KEYS[14] result          bytes   result:ID of the job that it names, if it can be read
ARGV[1] incarnation  str
ARGV[2] key          bytes
ARGV[3] text         bytes  what the record was when it was seen
ARGV[4] is_readable  int    1: the caller can read it; then park it only if it does not stand where it says
ARGV[5] ttl_ms       int    > 0; how long its outcome is kept, if it names a job

Uses     lane, record
Returns  OK[ <waiters>] | MOVED_ON (it is another record by now) | SOUND (it stands where it says)
Errors   POOLDATALOST <lane>
Cost     O(entries of the holder's stream); 25 commands
Why Lua  it may have been mended or replaced since it was read.
]]
if redis.call('HGET', jobs, key) ~= text then
  return 'MOVED_ON'
end
local r = parse(text)
-- A key of another type is somebody else's: it holds nothing of this job.
local has_owned, has_stream = fits(holders_owned, 'set'), fits(holders_stream, 'stream')
local has_unassigned = fits(unassigned, 'zset')
redis.call('XLEN', journal)
redis.call('ZCARD', parked)
redis.call('HLEN', letters)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('HLEN', blobs)
redis.call('ZREM', pending, '\n')

local function is_sound()
  if r[STATE] == 'P' then
    return redis.call('ZSCORE', pending, key)
  elseif r[STATE] == 'R' then
    return has_owned and redis.call('SISMEMBER', holders_owned, key) == 1
  elseif r[STATE] == 'U' then
    return has_unassigned and redis.call('ZSCORE', unassigned, key)
  end
  return redis.call('ZSCORE', due, 'k:' .. key)
end
if is_readable == 1 and r and is_sound() then
  if not has(r, 'd') and r[STATE] ~= 'W' then
    redis.call('ZREM', due, 'k:' .. key)
  end
  return 'SOUND'
end

local payload = redis.call('HGET', payloads, key)
if has_owned then
  redis.call('SREM', holders_owned, key)
end
for _, entry in ipairs(has_stream and redis.call('XRANGE', holders_stream, '-', '+') or {}) do
  if entry[2][2] == key then
    payload = payload or entry[2][6]
    redis.call('XDEL', holders_stream, entry[1])
  end
end
local id, head = 'malformed-' .. stamp(), { 'j', '-', '0', '0' }
if r and string.sub(result, -#r[ID] - 8) == ':result:' .. r[ID] then
  id, head = r[ID], { r[KIND], r[HANDLER], r[ATTEMPT], r[CRASHES] }
  local outcome = table.concat({ 'parked', r[EPOCH], r[OWNER], r[ATTEMPT], text_of(now), 'malformed' }, '|')
  redis.call('SET', result, outcome .. '\n', 'PX', ttl_ms)
end
redis.call('ZADD', parked, now, id)
redis.call('HSET', letters, id, table.concat(head, '|') .. '|' .. text_of(now) .. '|malformed\n' .. key
  .. '\n' .. string.gsub(text, '\n', ' ') .. '\n' .. (payload or ''))
redis.call('HDEL', jobs, key)
redis.call('HDEL', payloads, key)
redis.call('HDEL', blobs, key)
redis.call('DEL', inbox)
redis.call('ZREM', pending, key)
redis.call('ZREM', due, 'k:' .. key)
if has_unassigned and redis.call('ZREM', unassigned, key) == 1 then
  tally('unassigned', -1)
end
redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', 'malformed', 'key', key, 'id', id)
tally('parked', 1)
-- Its state may still be legible.  An unassigned key whose handler is not is counted out by the pull
-- that drops its entry.
if string.sub(text, 1, 2) == 'W|' then
  tally('waiting', -1)
end
close_lane()
return r and r[WAITERS] ~= '' and 'OK ' .. r[WAITERS] or 'OK'
