--[[
quarantine: park a record that cannot be read, with the bytes as they are.

KEYS[1] lane       hash    counters
KEYS[2] jobs       hash    key -> record
KEYS[3] pending    zset    key -> by when its start must be acknowledged
KEYS[4] due        zset    k:KEY -> when
KEYS[5] payloads   hash    key -> payload
KEYS[6] checkpoints      hash    key -> state, steps of a job -> results: see lib/steps.lua
KEYS[7] inbox      list    messages accepted for the key: none may reach the key's next job
KEYS[8] parked     zset    (job id, key) -> when it was parked
KEYS[9] letters    hash    (job id, key) -> dead letter
KEYS[10] journal   stream  abnormal edges
KEYS[11] attempts  hash    key -> failed attempts
KEYS[12] holders_owned   set     owned:W of the worker it was found at
KEYS[13] holders_stream  stream  stream:W of that worker
ARGV[1] generation  str
ARGV[2] key          bytes  or the name of one that is queued, see lib/queue.lua
ARGV[3] text         bytes  what the record was when it was seen
ARGV[4] after        str    entry behind which its start is looked for; -: from the first one
ARGV[5] looked_max   int    > 0; how many entries are looked at

Uses     lane, record, batch, lapse, queue, (out), (channel), (journal)
Returns  OK | MOVED_ON (it is another record by now) | LOOKED <entry> (nothing was done: it may stand behind this)
Errors   POOLDATALOST <lane>
Cost     O(looked_max); 24 commands, 9 more if somebody is queued behind it, 4 for each of its followers
Why Lua  it may have been mended or replaced since it was read.
]]
if redis.call('HGET', jobs, key) ~= text then
  return 'MOVED_ON'
end
-- A key of another type is somebody else's: it holds nothing of this job.
local has_owned, has_stream = fits(holders_owned, 'set'), fits(holders_stream, 'stream')
redis.call('ZCARD', parked)
redis.call('HLEN', letters)
redis.call('ZCARD', due)
redis.call('HLEN', checkpoints)
redis.call('HLEN', attempts)
local first = after == '-' and after or '(' .. after
local entries, found = has_stream and redis.call('XRANGE', holders_stream, first, '+', 'COUNT', looked_max) or {}, nil
for _, entry in ipairs(entries) do
  found = found or (entry[2][2] == key and entry)
end
if not found and #entries >= looked_max then
  return 'LOOKED ' .. entries[#entries][1]
end
redis.call('ZREM', pending, '\n')

local payload = redis.call('HGET', payloads, key)
if has_owned then
  redis.call('SREM', holders_owned, key)
end
if found then -- another one of the key is dropped by whoever looks at it: no record confirms it
  payload = payload or found[2][6]
  redis.call('XDEL', holders_stream, found[1])
end
local id = 'malformed-' .. stamp()
local of = string.match(key, '^\t[^ ]+ (.*)$') or key -- of one that is queued: its key
redis.call('ZADD', parked, now, id .. ' ' .. of)
redis.call('HSET', letters, id .. ' ' .. of, 'parked|0||0|' .. text_of(now) .. ',,,|h-|malformed\n'
  .. string.gsub(text, '[%c]', ' ') .. '\n\n' .. (payload or ''))
local its_id = string.match(text, '^[^|]*|[^|]*|([^|]+)|')
if its_id and redis.call('HEXISTS', payloads, '\f' .. its_id .. ' ' .. of) == 1 then
  local r = new_record('j', its_id, '-') -- whoever follows it does so now: there is no job to replay
  r[MORE] = 'f0'
  release(its_id .. ' ' .. of, r, 'parked', 'malformed', '', '')
  redis.call('HDEL', payloads, '\f' .. its_id .. ' ' .. of)
end
redis.call('HDEL', jobs, key)
redis.call('HDEL', payloads, key)
redis.call('HDEL', checkpoints, key, '\n' .. key)
redis.call('HDEL', attempts, key)
redis.call('UNLINK', inbox)
redis.call('ZREM', pending, key)
redis.call('ZREM', due, 'k:' .. key)
journal_add(journal, 'malformed', of, id, '', '', '', '', text)
tally('parked', 1)
-- Its state may still be legible.  An unassigned key whose handler is not is counted out by the pull
-- that drops its entry.
if string.match(text, '^[WQ]|') then
  tally('waiting', -1)
end
if of ~= key then
  leave_line(key, string.match(key, '^\t([^ ]+)'))
else
  promote(key)
end
write_batch()
close_lane()
return 'OK'
