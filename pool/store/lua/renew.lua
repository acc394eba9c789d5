--[[
renew: give a node and its workers more time in a lane, and tell what it needs to know.

KEYS[1] lane       hash    seen, quiet, counters
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] pending    zset    key -> by when its start must be acknowledged
KEYS[5] due        zset    k:KEY -> when
KEYS[6] journal    stream  abnormal edges
KEYS[...] owned            owned:IDENTITY per identity, in their order
ARGV[1] incarnation  str
ARGV[2] ttl_ms       int   > 0
ARGV[...] identities       id.n each

Uses     lane, quiet
Returns  server ms, stamp, unassigned keys, earliest lease end, earliest pending deadline, earliest due
         deadline (ms; -1: none), then per identity the number of keys it runs, or -1: fenced or unknown
Errors   POOLDATALOST <lane>
Cost     O(identities); 4 commands each, 10 a call
Why Lua  a renewal that raced with a fence would otherwise revive the fenced.

A gap between renewals of all longer than half a TTL, or a clock that went back, means that nobody could
renew: the lane is quiet for one TTL (of the longest kind seen), and nobody is fenced meanwhile.
]]
redis.call('XLEN', journal)
redis.call('HLEN', cleanup)
local function earliest(index)
  local head = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  return head[2] and instant(head[2]) or '-1'
end
local pending_first, due_first = earliest(pending), earliest(due)
for i = 7, #KEYS do
  redis.call('SCARD', KEYS[i])
end
redis.call('ZREM', keepalive, '\n')

notice_gap()
local was_behind = redis.call('HGET', lane, 'behind')
local behind = stamp_last - now_us > 1000000
if behind and not was_behind then
  redis.call('HSET', lane, 'behind', '1')
  redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', 'clock', 'detail', text_of(stamp_last - now_us))
elseif was_behind and not behind then
  redis.call('HDEL', lane, 'behind')
end

local answers = { text_of(now), text_of(stamp_last), whole(lane_had[3]), '-1', pending_first, due_first }
for i = 3, #ARGV do
  local name = ARGV[i]
  if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
    answers[#answers + 1] = -1
  else
    redis.call('ZADD', keepalive, now + ttl_ms, name)
    answers[#answers + 1] = redis.call('SCARD', KEYS[4 + i])
  end
end
answers[4] = earliest(keepalive)
return answers
