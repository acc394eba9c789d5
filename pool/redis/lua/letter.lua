--[[
letter: change the payload of a dead letter, or discard it.

KEYS[1] lane       hash    counters
KEYS[2] parked     zset    (job id, key) -> when it was parked
KEYS[3] letters    hash    (job id, key) -> dead letter
KEYS[4] checkpoints hash   the results of its steps, see lib/steps
KEYS[5] payloads   hash    its followers, see lib/channel
ARGV[1] generation  str
ARGV[2] what        str   edit | discard
ARGV[3] job         str   (job id, key)
ARGV[4] payload     bytes  of edit

Uses     lane, record
Returns  OK | NOLETTER | MALFORMED (it cannot be read)
Errors   POOLDATALOST <lane>
Cost     O(1); 10 commands
Why Lua  it may be replayed at this moment: then it is not to be changed any more, nor made again.
]]
redis.call('ZCARD', parked)
redis.call('HLEN', checkpoints)
redis.call('HLEN', payloads)
local steps = '\n\n' .. job
local letter = redis.call('HGET', letters, job)
if not letter then
  return 'NOLETTER'
elseif what == 'discard' then
  redis.call('ZREM', parked, job)
  redis.call('HDEL', letters, job)
  redis.call('HDEL', checkpoints, steps)
  redis.call('HDEL', payloads, '\f' .. job)
  tally('discarded', 1)
  close_lane()
  return 'OK'
end
local before, more, rest = string.match(letter, '^(parked|[^|\n]*|[^|\n]*|[^|\n]*|[^|\n]*|)([^|\n]*)(|[^\n]*\n[^\n]*\n[^\n]*\n)')
if not before then
  return 'MALFORMED'
end
redis.call('HSET', letters, job, before .. with_more(more, 'e', '') .. rest .. payload)
redis.call('HDEL', checkpoints, steps) -- they are of a job with other arguments
return 'OK'
