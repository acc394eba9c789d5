--[[
expire: end answers that have been remembered for long enough, and tell which ones are next.

KEYS[1] lane       hash    incarnation, seen, offset
KEYS[2] kept       zset    (job id, key) of one call's jobs (line ends between) -> until when their answers are remembered
KEYS[...] results          result:ID KEY per job of all items
ARGV[1] generation  str
ARGV[2] items_max    int   how many at most to tell of
ARGV[...] items            as it was told of them

Uses     lane
Returns  items whose time is up
Errors   POOLDATALOST <lane>
Cost     O(jobs + items_max * log n); 2 commands an item that is ended, 4 a call
Why Lua  the time of an answer may have been prolonged since it was told, and pool time is the lane's alone.
]]
redis.call('ZCARD', kept)
local k = 3
for i = 3, #ARGV do
  local _, jobs = string.gsub(ARGV[i], '[^\n]+', '')
  local until_ms = redis.call('ZSCORE', kept, ARGV[i])
  if until_ms and tonumber(until_ms) <= now then
    redis.call('UNLINK', unpack(KEYS, k, k + jobs - 1))
    redis.call('ZREM', kept, ARGV[i])
  end
  k = k + jobs
end
return redis.call('ZRANGEBYSCORE', kept, '-inf', text_of(now), 'LIMIT', 0, items_max)
