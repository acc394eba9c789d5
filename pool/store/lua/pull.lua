--[[
pull: give a worker with free slots the oldest unassigned keys of the handlers it knows.

KEYS[1] lane       hash    stamp, counters
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    id -> incarnation|takes|seq[|down]
KEYS[5] jobs       hash    key -> record
KEYS[6] pending    zset    key -> by when its start must be acknowledged
KEYS[7] payloads   hash    key -> payload
KEYS[8] stream     stream  the worker's starts
KEYS[9] owned      set     keys the worker runs
KEYS[...] unassigned       one per handler the worker knows: key -> acceptance stamp
ARGV[1] incarnation  str
ARGV[2] pending_ms   int   > 0
ARGV[3] keys_max     int   how many at most, 1 to 1000
ARGV[4] target_count int   1: the worker itself
ARGV[5] id           str   worker id
ARGV[6] number       str   its incarnation in this lane

Uses     lane, record, batch, place
Returns  number of unassigned keys left, number of keys granted
Errors   POOLDATALOST <lane>, POOLGONE <identity>
Cost     O(handlers + granted * log n); 1 command a key, 18 a call, 3 a handler
Why Lua  two workers would otherwise both take the oldest key.
]]
local name = id .. '.' .. number
if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
  return redis.error_reply('POOLGONE ' .. name)
end
read_targets(4, 8)
local target = targets[1]
redis.call('HLEN', jobs)
redis.call('HLEN', payloads)
local wanted = math.min(keys_max, target.room)
local lists, at = {}, {}
for i = 10, #KEYS do
  if fits(KEYS[i], 'zset') then
    lists[i], at[i] = redis.call('ZRANGE', KEYS[i], 0, math.max(wanted, 1) - 1, 'WITHSCORES'), 1
  end
end
redis.call('ZREM', pending, '\n')

-- The oldest of all handlers: a merge of lists that are in order, taken from their heads.
local keys = {}
while #keys < wanted do
  local oldest
  for i, list in pairs(lists) do
    local score = tonumber(list[at[i] + 1])
    if score and (not oldest or score < tonumber(lists[oldest][at[oldest] + 1])) then
      oldest = i
    end
  end
  if not oldest then
    break
  end
  keys[#keys + 1] = lists[oldest][at[oldest]]
  at[oldest] = at[oldest] + 2
end
local granted = 0
if #keys > 0 then
  for i, next_at in pairs(at) do
    if next_at > 1 then
      redis.call('ZREMRANGEBYRANK', KEYS[i], 0, (next_at - 1) / 2 - 1)
    end
  end
  tally('unassigned', -#keys)
  local texts = redis.call('HMGET', jobs, unpack(keys))
  local bodies = redis.call('HMGET', payloads, unpack(keys))
  local seen = {}
  for n, key in ipairs(keys) do
    local r = parse(texts[n])
    local is_whole = r and r[STATE] == 'U' and (bodies[n] or has(r, 'p'))
    if r and r[STATE] == 'U' and not is_whole and not seen[key] then
      tally('unassigned', 1) -- its payload is gone: the walk finds it in no index, and has it parked
    elseif is_whole and not seen[key] then
      seen[key] = true
      if not has(r, 'p') then
        later('HDEL', payloads, key)
      end
      grant(key, r, target, bodies[n] or '')
      granted = granted + 1
    end
  end
end
write_batch()
close_lane()
return { whole(lane_had[3]) + (tallies['unassigned'] or 0), granted }
