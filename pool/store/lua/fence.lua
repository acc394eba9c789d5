--[[
fence: claim identities whose lease has ended (SetIfNotExists in the cleanup map), or whose reaper died.

KEYS[1] lane       hash    seen, quiet
KEYS[2] keepalive  zset    identity -> lease end; of a fenced one: by when its reaper must have gone on
KEYS[3] cleanup    hash    identity -> holder|fence, later done
KEYS[4] open       hash    id -> incarnation|takes|seq[|down]
KEYS[5] journal    stream  abnormal edges
ARGV[1] incarnation  str
ARGV[2] ttl_ms       int   > 0
ARGV[3] reap_ms      int   > 0; how long a claim holds without progress
ARGV[4] holder       str   identity of the reaper
ARGV[5] claims_max   int   how many at most
ARGV[...] suspects         id.n each that own something, are announced or claimed: claimed when they have no
                           keep-alive entry at all

Uses     lane, quiet
Returns  earliest lease end (ms; -1: none), then (identity, claim) per claim now held
Errors   POOLDATALOST <lane>
Cost     O(claims * log n); 6 commands a claim
Why Lua  the lease has ended, nobody claimed it, now I do: with a gap between them two reapers would both
         begin, or a renewal would slip in.  From here on every script of that identity is refused, for all
         its keys at once, before the first key is moved.
]]
redis.call('HLEN', open)
redis.call('HLEN', cleanup)
redis.call('XLEN', journal)
redis.call('ZREM', keepalive, '\n')

notice_gap()
local FORGET_TTLS = 10
local answers = { '-1' }
local function claim(name, had)
  local fence = holder .. '|' .. stamp()
  redis.call('HSET', cleanup, name, fence)
  local id, n = string.match(name, '^(.*)%.(%d+)$')
  if id and string.match(redis.call('HGET', open, id) or '', '^(%d+)|') == n then
    redis.call('HDEL', open, id)
  end
  redis.call('ZADD', keepalive, now + reap_ms, name)
  redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', had and 'reaper.succeeded' or 'fenced',
    'owner', name, 'detail', fence)
  tally('fenced', had and 0 or 1)
  answers[#answers + 1] = name
  answers[#answers + 1] = fence
end
-- A suspect gets a lease that has ended: if it cannot be claimed now, it will be by somebody.  What is
-- done is remembered as long as ever.
for i = 6, #ARGV do
  local is_done = redis.call('HGET', cleanup, ARGV[i]) == 'done'
  redis.call('ZADD', keepalive, 'NX', is_done and now + FORGET_TTLS * ttl_max or now, ARGV[i])
end
if now >= quiet then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', keepalive, '-inf', now, 'LIMIT', 0, claims_max)) do
    local had = redis.call('HGET', cleanup, name)
    if had == 'done' then
      redis.call('HDEL', cleanup, name)
      redis.call('ZREM', keepalive, name)
    else
      claim(name, had)
    end
  end
end
close_lane()
local head = redis.call('ZRANGE', keepalive, 0, 0, 'WITHSCORES')
if head[2] then
  answers[1] = instant(math.max(tonumber(head[2]), quiet))
end
return answers
