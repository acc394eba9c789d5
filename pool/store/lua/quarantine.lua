--[[
quarantine: park a record that cannot be read, with the bytes as they are.

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
KEYS[...] holders          owned:W, stream:W of the worker it was found at, if any
ARGV[1] incarnation  str
ARGV[2] key          bytes
ARGV[3] text         bytes  what the record was when it was seen

Uses     lane, record
Returns  OK | MOVED_ON (it is another record by now)
Errors   POOLDATALOST <lane>
Cost     O(entries of the holder's stream); 20 commands
Why Lua  it may have been mended or replaced since it was read.
]]
if redis.call('HGET', jobs, key) ~= text or parse(text) then
  return 'MOVED_ON'
end
redis.call('XLEN', journal)
redis.call('ZCARD', parked)
redis.call('HLEN', letters)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('HLEN', blobs)
redis.call('LLEN', inbox)
if KEYS[11] then
  redis.call('SCARD', KEYS[11])
  redis.call('XLEN', KEYS[12])
end
redis.call('ZREM', pending, '\n')
local id = 'malformed-' .. stamp()
redis.call('ZADD', parked, now, id)
redis.call('HSET', letters, id, table.concat({ 'j', '-', '0', '0', text_of(now), 'malformed' }, '|') .. '\n' .. key
  .. '\n' .. text .. '\n' .. (redis.call('HGET', payloads, key) or ''))
redis.call('HDEL', jobs, key)
redis.call('HDEL', payloads, key)
redis.call('HDEL', blobs, key)
redis.call('DEL', inbox)
redis.call('ZREM', pending, key)
redis.call('ZREM', due, 'k:' .. key)
if KEYS[11] then
  redis.call('SREM', KEYS[11], key)
  for _, entry in ipairs(redis.call('XRANGE', KEYS[12], '-', '+')) do
    if entry[2][2] == key then
      redis.call('XDEL', KEYS[12], entry[1])
    end
  end
end
redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', 'malformed', 'key', key, 'id', id)
tally('parked', 1)
-- Its state may still be legible; an unassigned key is counted out by the pull that drops its entry.
if string.sub(text, 1, 2) == 'W|' then
  tally('waiting', -1)
end
close_lane()
return 'OK'
