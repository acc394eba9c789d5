--[[
expire: end answers that have been remembered for long enough, and tell which ones are next; and the oldest
of the dead letters, where they are too old or too many.

KEYS[1] lane       hash    incarnation, seen, offset
KEYS[2] kept       zset    (length, job id, key) of one call's jobs (line ends between) -> until when their answers are remembered
KEYS[3] parked     zset    (job id, key) -> when it was parked
KEYS[4] letters    hash    (job id, key) -> dead letter
KEYS[5] checkpoints hash   the results of their steps, see lib/steps
KEYS[6] payloads   hash    their followers, see lib/channel
KEYS[...] results          result:ID KEY per job of all items
ARGV[1] generation  str
ARGV[2] items_max    int   how many at most to tell of, and letters to end
ARGV[3] parked_ms    int   > 0; how long dead letters are kept
ARGV[4] parked_max   int   > 0; how many of them
ARGV[...] items            as it was told of them

Uses     lane, typed
Returns  how many letters were ended, then items whose time is up
Errors   POOLDATALOST <lane>
Cost     O(jobs + items_max * log n); 1 command an item, 1 a job of it, 4 a letter, 10 a call
Why Lua  the time of an answer may have been prolonged since it was told, and pool time is the lane's alone.
]]
redis.call('ZCARD', kept)
local over = redis.call('ZCARD', parked) - parked_max
redis.call('HLEN', letters)
redis.call('HLEN', checkpoints)
redis.call('HLEN', payloads)
local k, gone, names = 7, {}, {}
for i = 5, #ARGV do
  local _, jobs = string.gsub(ARGV[i], '[^\n]+', '')
  local until_ms = redis.call('ZSCORE', kept, ARGV[i])
  if until_ms and tonumber(until_ms) <= now then
    local at = k
    for line in string.gmatch(ARGV[i], '[^\n]+') do
      local size = whole(string.match(line, '^%d+'))
      local length = typed('STRLEN', KEYS[at])
      if type(length) ~= 'number' or length == size then
        names[#names + 1] = KEYS[at]
      end
      tally('results', -size)
      at = at + 1
    end
    gone[#gone + 1] = ARGV[i]
  end
  k = k + jobs
end
-- Once for all: a command costs more than the rest of a job here.  unpack() has room for about 8000.
if #names > 0 then
  redis.call('UNLINK', unpack(names))
end
if #gone > 0 then
  redis.call('ZREM', kept, unpack(gone))
end
local ended = 0
local oldest = redis.call('ZRANGE', parked, 0, items_max - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
  if over <= 0 and tonumber(oldest[i + 1]) > now - parked_ms then
    break
  end
  redis.call('ZREM', parked, oldest[i])
  redis.call('HDEL', letters, oldest[i])
  redis.call('HDEL', checkpoints, '\n\n' .. oldest[i])
  redis.call('HDEL', payloads, '\f' .. oldest[i])
  over, ended = over - 1, ended + 1
end
tally('forgotten', ended)
local counted = whole(redis.call('HGET', lane, 'results')) + (tallies['results'] or 0)
if counted > 0 and redis.call('EXISTS', kept) == 0 then
  redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
  tally('results', -counted) -- of what somebody deleted by hand
end
close_lane()
local items = redis.call('ZRANGEBYSCORE', kept, '-inf', text_of(now), 'LIMIT', 0, items_max)
table.insert(items, 1, ended)
return items
