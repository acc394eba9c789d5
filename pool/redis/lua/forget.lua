--[[
forget: forget fenced identities that own nothing; most that die at once are nodes without a worker.

KEYS[1] lane       hash    ttl
KEYS[2] keepalive  zset    identity -> by when the reaper must have gone on, in lease time
KEYS[3] cleanup    hash    identity -> claim, later done
KEYS[...] rest             owned, stream, signal of each identity
ARGV[1] generation  str
ARGV[...] items      identity, claim each

Uses     lane, ttl, lease
Returns  per item: OK (again: it had been forgotten) | OWNS (its keys are to be moved first, see reap) | GONE (another reaper holds it)
Errors   POOLDATALOST <lane>
Cost     O(identities); 7 commands each, 5 a call
Why Lua  as in `reap`: it may be forgotten only in the step that saw it own nothing.
]]
redis.call('HLEN', cleanup)
redis.call('ZREM', keepalive, '\n')
local answers = {}
for a = 2, #ARGV, 2 do
  local name, k = ARGV[a], 4 + 3 * (a - 2) / 2
  local is_fit = fits(KEYS[k], 'set') and fits(KEYS[k + 1], 'stream') and fits(KEYS[k + 2], 'stream')
  local fence = redis.call('HGET', cleanup, name)
  if fence ~= ARGV[a + 1] then
    answers[#answers + 1] = fence == 'done' and 'OK' or 'GONE'
  elseif not is_fit or redis.call('EXISTS', KEYS[k]) == 1 or redis.call('XLEN', KEYS[k + 1]) > 0 then
    answers[#answers + 1] = 'OWNS'
  else
    redis.call('DEL', KEYS[k + 1], KEYS[k + 2])
    redis.call('HSET', cleanup, name, 'done')
    redis.call('ZADD', keepalive, lease_now + 10 * ttl_ms, name) -- a late copy of a call is younger
    answers[#answers + 1] = 'OK'
  end
end
return answers
