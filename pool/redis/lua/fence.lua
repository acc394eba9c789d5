--[[
fence: claim identities whose lease has ended (SetIfNotExists in the cleanup map), or whose reaper died.

KEYS[1] lane       hash    seen, lease, silences, hold, offset
KEYS[2] keepalive  zset    identity -> lease end, in lease time; of a fenced one: by when its reaper must have gone on
KEYS[3] cleanup    hash    identity -> claim: holder|fence|alive|culprit[.bits], later done
KEYS[4] open       hash    id -> number|takes|seq[|down]
KEYS[5] journal    stream  abnormal edges
KEYS[6] jobs       hash    key -> record
KEYS[7] trials     hash    identity -> epoch[.bits]|key of the suspected job that it began last, and that may kill it
KEYS[8] deaths     zset    PROCESS.MS -> pool time of its last renewal, MS: the processes that died
ARGV[1] generation  str
ARGV[2] reap_ms      int   > 0; how long a claim holds without progress
ARGV[3] holder       str   identity of the reaper
ARGV[4] claims_max   int   how many at most
ARGV[5] crash_window_ms int   > 0; how long a death is remembered
ARGV[6] latest_ms    int   pool time cannot be later than this, says the caller; 0: it does not know
ARGV[...] suspects         id.n each that own something, are announced or claimed: claimed when they have no
                           keep-alive entry at all

Uses     lane, ttl, lease, record, (journal)
Returns  earliest lease end (ms; -1: none; 0: more have ended than this call could take), then (identity, claim) per
         claim now held; when to ask again alone, while nobody vouches for the server's clock
Errors   POOLDATALOST <lane>
Cost     O(claims * log n); 8 commands a claim
Why Lua  the lease has ended, nobody claimed it, now I do: with a gap between them two reapers would both
         begin, or a renewal would slip in.  From here on every script of that identity is refused, for all
         its keys at once, before the first key is moved.

Ended is what ends by the lease clock, the gap since the last renewal included: it may be the first script after a
silence.  Nobody is claimed before `hold` (see lib/silence).

A claim says when the identity was surely alive (its last renewal, in pool time; or, if that was while pool time stood,
since when it did), and the epoch of the job that probably killed it (0: of none): the suspected one that it began last, unless
it has said since that this one lives, or has ended it.  Time would be no evidence: what the dead had sent may arrive
after its death.  Both are lost with its lease, so they stand in the claim, also of a successor.

`deaths` is written by the first claim of a worker of a process: it closes that worker, so a successor finds it closed.  Nodes without workers, and
workers that said that they drain, are no deaths: such an end says nothing about jobs.
]]
redis.call('HLEN', open)
redis.call('HLEN', cleanup)
redis.call('HLEN', jobs)
redis.call('HLEN', trials)
redis.call('ZCARD', deaths)
redis.call('ZREM', keepalive, '\n')
-- A suspect gets a lease that has ended, whoever vouches for the time: if it cannot be claimed now, it will be
-- by somebody, and need not be found once more.  What is done is remembered as long as ever.
local FORGET_TTLS = 10
for i = 7, #ARGV do
  local is_done = redis.call('HGET', cleanup, ARGV[i]) == 'done'
  redis.call('ZADD', keepalive, 'NX', is_done and lease_now + FORGET_TTLS * ttl_ms or lease_now, ARGV[i])
end
if is_astray or (latest_ms > 0 and now > latest_ms) then
  return { text_of(now + period_ms) }
end

local hold = whole(redis.call('HGET', lane, 'hold'))
local answers = { '-1' }
local function culprit_of(name)
  local epoch, bits, key = string.match(redis.call('HGET', trials, name) or '', '^(%d+)(%.?%d*)|(.*)$')
  local r = key and parse(redis.call('HGET', jobs, key))
  redis.call('HDEL', trials, name)
  return r and r[STATE] == 'R' and r[OWNER] == name and r[EPOCH] == epoch and epoch .. bits or '0'
end
local DEATHS_MAX = 256
local function note_death(id, alive)
  local process = string.sub(id, 2, 11)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', deaths, '(' .. text_of(math.max(0, alive - ttl_ms)), '+inf')) do
    if string.match(name, '^(.*)%.%d+$') == process then
      return -- by another worker of it
    end
  end
  redis.call('ZREMRANGEBYSCORE', deaths, '-inf', now - crash_window_ms)
  redis.call('ZREMRANGEBYRANK', deaths, 0, -DEATHS_MAX)
  redis.call('ZADD', deaths, text_of(alive), process .. '.' .. text_of(alive))
end
-- The pool time of a lease time at which something was renewed; see lib/lease for `silences`.
local function pool_of(renewed)
  for before, behind, latest in string.gmatch(redis.call('HGET', lane, 'silences') or '', '(%d+)|(-?%d+)|(%d+)') do
    if renewed < tonumber(before) then
      return math.max(0, math.min(now, renewed + tonumber(behind), tonumber(latest)))
    end
  end
  return math.max(0, math.min(now, renewed + seen - lease))
end
local function claim(name, lease_end, had)
  local alive, culprit = string.match(had or '', '^[^|]*|%d+|(%d+)|(%d+%.?%d*)$')
  if not alive then
    alive, culprit = text_of(pool_of(tonumber(lease_end) - ttl_ms)), culprit_of(name)
  end
  local fence = holder .. '|' .. stamp() .. '|' .. alive .. '|' .. culprit
  redis.call('HSET', cleanup, name, fence)
  local id, n = string.match(name, '^(.*)%.(%d+)$')
  local open_n, drains = string.match(id and redis.call('HGET', open, id) or '', '^(%d+)|[^|]*|%d+(|?)')
  if id and open_n == n then
    if drains == '' then
      note_death(id, tonumber(alive))
    end
    redis.call('HDEL', open, id)
  end
  redis.call('ZADD', keepalive, lease_now + reap_ms, name)
  journal_add(journal, had and 'reaper.succeeded' or 'fenced', '', '', '', name, '', '', fence)
  tally('fenced', had and 0 or 1)
  answers[#answers + 1] = name
  answers[#answers + 1] = fence
end
if lease > 0 and lease_now >= hold then
  local ended = redis.call('ZRANGEBYSCORE', keepalive, '-inf', lease_now, 'WITHSCORES', 'LIMIT', 0, claims_max)
  for i = 1, #ended, 2 do
    local name = ended[i]
    local had = redis.call('HGET', cleanup, name)
    if had == 'done' then
      redis.call('HDEL', cleanup, name)
      redis.call('ZREM', keepalive, name)
      redis.call('HDEL', trials, name)
    else
      claim(name, ended[i + 1], had)
    end
  end
end
close_lane()
local head = redis.call('ZRANGE', keepalive, 0, 0, 'WITHSCORES')
if head[2] then
  local first = math.max(tonumber(head[2]), hold, lease > 0 and 0 or lease_now + period_ms)
  answers[1] = first > lease_now and instant(now + first - lease_now) or '0'
end
return answers
