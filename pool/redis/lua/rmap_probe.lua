--[[
rmap_probe: where in their histories several replicated maps are, and which maps' time is up; it notes the time.

Uses    typed, at, maps_time
KEYS[1] config  hash  the pool's generation
KEYS[2] maps    hash  now, seen: the time by which maps end, and the server's clock then
KEYS[3] due     zset  map -> when its time is up, by that time
KEYS[...] of    per map: its data, its lists, its log
ARGV[1] generation  str  the pool's, as the caller knows it
ARGV[2] expected_ms  int  the maps' time by what passed since the caller's last probe; 0: it has none
ARGV[3] ended_max    int  how many names of maps that have ended it takes
ARGV[4] late_ms      int  > 0; for how long they are the caller's: who does not end them leaves them to others then
ARGV[5] logs         int  1: look at the logs, too
ARGV[...] names      of the maps

Returns  [now, names, foreign, ...]: the maps' time; which maps' time is up; where foreign data are, 1 in maps, 2 in due,
         3 in both; then of each map asked for: revision and
         stamp, '0' and '0' for one that is not there; how many strings it has and how many items in its lists,
         and 0.  Of one that cannot be read two nils, -1 and -1, and which of its keys that is: 1 to 3; 4 where what
         finds the values in lists is not as many as they are
Errors   POOLDATALOST <config>  the pool's generation is another one, or gone
Cost     O(maps + names); 7 commands, 3 per map, 1 more with lists, 1 with an end and 1 with logs, 1 per name
Why Lua  one answer for all maps a node follows, of one moment and of one generation: one broken map hides no other.

The maps' time is what the pool's processes have seen pass.  Where the server's clock goes on otherwise than a
caller has measured, or nobody probed for long, the caller is believed, and who has measured nothing moves
nothing: no step of the clock ends a map, and time without anybody does not count.

The place in due is only how an end is found: one that another hand took away is put back from the map's own end.
While foreign data are there each caller ends what it follows; while they are in maps, nothing ends.
]]
local STEP_MS = 5000 -- a late message explains less
if redis.call('HGET', config, 'incarnation') ~= generation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local answer = { '0', {}, 0 }
local now, clock = maps_time()
-- Both are writes: a full server checks memory at the first one only.
local is_timed = type(typed('HDEL', maps, '-')) == 'number'
local is_listed = type(typed('ZREM', due, '\n')) == 'number'
answer[3] = (is_timed and 0 or 1) + (is_listed and 0 or 2)
if is_timed then
  if expected_ms > now or (expected_ms > 0 and now - expected_ms > STEP_MS) then
    local had = tonumber(redis.call('HGET', maps, 'now') or 0) or 0
    now = math.max(expected_ms, had)
  end
  redis.call('HSET', maps, 'now', whole(now), 'seen', whole(clock))
  answer[1] = whole(now)
end
for i = 4, #KEYS, 3 do
  local name = ARGV[5 + (i - 1) / 3]
  local at, held = typed('HGET', KEYS[i], 'at'), typed('HLEN', KEYS[i])
  local members = typed('ZCARD', KEYS[i + 1])
  local length = logs == 1 and typed('XLEN', KEYS[i + 2])
  local broken = type(held) == 'table' and 1 or type(members) == 'table' and 2 or type(length) == 'table' and 3 or 0
  if broken > 0 then
    for _, each in ipairs({ false, false, -1, -1, broken }) do
      answer[#answer + 1] = each
    end
  else
    local from, revision, stamp, ends = read_place(at)
    local items = members > 0 and redis.call('ZLEXCOUNT', KEYS[i + 1], '[l', '(m') or 0
    answer[#answer + 1] = from and whole(revision) or '0'
    answer[#answer + 1] = from and stamp or '0'
    answer[#answer + 1] = math.max(0, held - (at and 1 or 0))
    answer[#answer + 1] = items
    answer[#answer + 1] = members == 2 * items and 0 or 4
    if from and ends > 0 then
      if is_listed then
        redis.call('ZADD', due, 'NX', whole(ends), name)
      elseif is_timed and ends <= now and ended_max > 0 then
        table.insert(answer[2], name)
      end
    end
  end
end
if is_timed and is_listed and ended_max > 0 then
  answer[2] = redis.call('ZRANGEBYSCORE', due, '-inf', whole(now), 'LIMIT', 0, ended_max)
  for _, name in ipairs(answer[2]) do
    redis.call('ZADD', due, whole(now + late_ms), name)
  end
end
return answer
