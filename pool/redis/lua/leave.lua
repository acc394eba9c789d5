--[[
leave: forget identities that own nothing and are out of `open`.

KEYS[1] lane       hash    incarnation, ttl
KEYS[2] keepalive  zset    identity -> lease end, in lease time
KEYS[3] cleanup    hash    identity -> claim, later done
KEYS[4] open       hash    id -> number|takes|seq[|down]
KEYS[...] rest             owned, stream, signal of each identity
ARGV[1] generation  str
ARGV[...] items      id, number each

Uses     lane, ttl, lease
Returns  per item: OK (again: it had left) | OWNS <keys> (nothing done for it) | GONE (fenced: it is the reaper's)
Errors   POOLDATALOST <lane>
Cost     O(identities)
Why Lua  it may go only in the step that saw it own nothing, else a grant in between is orphaned.
]]
redis.call('ZCARD', keepalive)
redis.call('HLEN', cleanup)
redis.call('HLEN', open)
for k = 5, #KEYS, 3 do
  redis.call('SCARD', KEYS[k])
  redis.call('XLEN', KEYS[k + 1])
  redis.call('XLEN', KEYS[k + 2])
end
local answers = {}
for a = 2, #ARGV, 2 do
  local id, n = ARGV[a], ARGV[a + 1]
  local name = id .. '.' .. n
  local k = 5 + (a - 2) / 2 * 3
  local keys = redis.call('SCARD', KEYS[k]) + redis.call('XLEN', KEYS[k + 1])
  local fence = redis.call('HGET', cleanup, name)
  if fence then
    answers[#answers + 1] = fence == 'done' and 'OK' or 'GONE'
  elseif keys > 0 then
    answers[#answers + 1] = 'OWNS ' .. keys
  else
    if string.match(redis.call('HGET', open, id) or '', '^(%d+)|') == n then
      redis.call('HDEL', open, id)
    end
    redis.call('DEL', KEYS[k], KEYS[k + 1], KEYS[k + 2]) -- first: after it a full server takes the rest
    redis.call('HSET', cleanup, name, 'done')
    redis.call('ZADD', keepalive, lease_now + 10 * ttl_ms, name) -- a late copy of a call is younger
    answers[#answers + 1] = 'OK'
  end
end
return answers
