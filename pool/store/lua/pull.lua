--[[
pull: give a worker with free slots the oldest unassigned keys of the handlers it knows.

KEYS[1] lane       hash    stamp, counters
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    worker id -> incarnation|capacity
KEYS[5] jobs       hash    key -> record
KEYS[6] pending    zset    key -> by when its start must be acknowledged
KEYS[7] due        zset    k:KEY -> when
KEYS[8] payloads   hash    key -> payload
KEYS[9] stream     stream  the worker's starts
KEYS[10] owned     set     keys the worker runs
KEYS[...] unassigned       one per handler the worker knows: key -> acceptance stamp
ARGV[1] incarnation  str
ARGV[2] pending_ms   int   > 0
ARGV[3] keys_max     int   how many at most, > 0
ARGV[4] target_count int   1: the worker itself
ARGV[5] id           str   worker id
ARGV[6] number       str   its incarnation in this lane

Uses     lane, record, place
Returns  number of unassigned keys left, number of keys granted
Errors   POOLDATALOST <lane>, POOLGONE <identity>
Cost     O(handlers + granted * log n); 5 commands a key
Why Lua  two workers would otherwise both take the oldest key.
]]
local name = id .. '.' .. number
if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
  return redis.error_reply('POOLGONE ' .. name)
end
read_targets(4, 9)
local target = targets[1]
redis.call('HLEN', jobs)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
local heads = {}
for i = 11, #KEYS do
  heads[i] = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')
end
redis.call('ZREM', pending, '\n')

local granted = 0
while granted < keys_max and target.room > 0 do
  local oldest
  for i, head in pairs(heads) do
    if head[1] and (not oldest or tonumber(head[2]) < tonumber(heads[oldest][2])) then
      oldest = i
    end
  end
  if not oldest then
    break
  end
  local key = heads[oldest][1]
  redis.call('ZREM', KEYS[oldest], key)
  tally('unassigned', -1)
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  if text and not r then
    -- The sweeper finds it there and has it parked.
    redis.call('ZADD', due, now, 'k:' .. key)
  elseif r and r[STATE] == 'U' then
    local payload
    if not has(r, 'p') then
      payload = redis.call('HGET', payloads, key) or ''
      redis.call('HDEL', payloads, key)
    end
    grant(key, r, target, payload)
    granted = granted + 1
  end
  heads[oldest] = redis.call('ZRANGE', KEYS[oldest], 0, 0, 'WITHSCORES')
end
close_lane()
return { tonumber(lane_had[3] or '0') + (tallies['unassigned'] or 0), granted }
