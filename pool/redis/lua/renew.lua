--[[
renew: give a node and its workers more time in a lane, say again what is true of them, and tell what it
needs to know.

KEYS[1] lane       hash    seen, lease, silences, run, hold, offset, turn, claim, begun, paced, reached, counters
KEYS[2] keepalive  zset    identity -> lease end, in lease time
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    id -> number|takes|seq[|ails]; of a node only while something ails it; of a worker that drains
                           number|0|seq|0, so that its death is none (see fence)
KEYS[5] handlers   hash    name -> options
KEYS[6] pending    zset    key -> by when its start must be acknowledged
KEYS[7] due        zset    k:KEY, s: -> when
KEYS[8] journal    stream  abnormal edges
KEYS[...] owned            owned:IDENTITY per identity, in their order; then signal:IDENTITY likewise
ARGV[1] generation     str
ARGV[2] seq             int   how many renewals this node has asked for; a later one has a higher number
ARGV[3] term            int   number of the change of TTL that the caller goes by
ARGV[4] ails            str   what ails the node, see core/ailing.py; 0: nothing does
ARGV[5] expected_ms     int   pool time that the caller expects; 0: it knows none
ARGV[6] since_ms        int   pool time since which it has counted without a break
ARGV[7] turn            int   number of the offset that it knows
ARGV[8] off_ms          int   by how much it has measured that pool time is off; 0: it is not
ARGV[9] who             str   the caller
ARGV[10] floor          int   no epoch of the lane that the caller has seen is higher, see join
ARGV[11] first_ms      int   how long ago its first try began that was not answered; 0: the last one was
ARGV[12] last_ms       int   how long ago the last one failed
ARGV[13] heard_ms     int   pool time as the last renewal of this caller was told it, vouched for; 0: none was
ARGV[14] identity_count int   how many; (id.n, takes) each follow. takes: -1 for a node, -2 for a worker that
                              drains; how many keys a worker takes, 0: it is closed; `-`: its event loop hangs
ARGV[...] handlers      name, options each: of what the workers know; or none, to save the bytes

Uses     lane, ttl, lease, (journal), silence, clock
Returns  pool ms, stamp and, if the data are older than what the caller has seen, a bar and by how many ms, unassigned keys, earliest lease end, earliest pending deadline, earliest due
         deadline (ms; -1: none), number of handlers registered (-1: unknown), granted TTL (ms), its
         term and behind it f if all edges of some jobs are noted (see lib/follow), and behind a bar what is paused, if
         anything is (see lib/pause), its clock (by how many ms
         TIME and offset are beyond that, offset, its number, and `late` if the caller knows nothing that is of
         use, else what a witness claims, if one does; bars between), then per identity the number of keys it
         runs, or -1: fenced or unknown
Errors   POOLDATALOST <lane>
Cost     O(identities + handlers); 4 commands an identity, 20 a call
Why Lua  a renewal that raced with a fence would otherwise revive the fenced.

A stream of signals that somebody deleted is made again, with a word of that: nothing is signalled to one that
is not there, so its reader looks after everything that it may have missed.

The lane's stamp is raised to `floor`: data that went back to an older state lack the latest epochs, and where the
server's clock is behind, too, the next ones would be lower.  Such data are known by two numbers that never fall: the
stamp, unless others have been granted something since, and `seen`, which only renewals write: so who renews first
knows it, if what is missing is over a second (and if it is not, by the stamp, if that was not used).

What stands in `open` and was written by a later renewal stays: a late one neither opens nor closes
anybody.  A handler that stands in `handlers` stays as it is, or two versions of a service would flap.

Leases last for a TTL of lease time, which stands still while nobody could renew (see lib/lease).  The first renewal
that another server answers keeps everybody for one TTL: it may lack renewals (`hold`).

The lane's TTL is granted and told, whatever the caller goes by.  But a lease gets shorter only for a caller
who names the term of the TTL that does it: until then they may believe in what an earlier renewal granted
them, as the reply that would have told them may be lost; so what they have stands.
]]
redis.call('HLEN', cleanup)
local function earliest(index)
  local head = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  return head[2] and instant(head[2]) or '-1'
end
local pending_first, due_first = earliest(pending), earliest(due)
local counts = {}
for i = 1, identity_count do
  counts[i] = redis.call('SCARD', KEYS[8 + i])
end
redis.call('ZREM', keepalive, '\n')

local older_ms = seen > 0 and heard_ms > seen + CLOCK_MS and heard_ms - seen or 0
local is_vouched = keep_time()
local from = is_vouched and lease or lease > 0 and lease + window_ms or now
hear_server(from)
if floor > stamp_last and floor <= STAMP_MAX then
  older_ms = math.max(older_ms, math.ceil((floor - stamp_last) / 1000))
  stamp_last = floor
  redis.call('HSET', lane, 'stamp', text_of(floor))
end
if whole(lane_had[9]) ~= ttl_ms then
  redis.call('HSET', lane, 'paced', text_of(ttl_ms))
  if not is_vouched then
    -- Another window counts from now on than what was granted in this one goes by.
    redis.call('HSET', lane, 'hold', text_of(from + 2 * math.floor(math.min(ttl_ms / 5, 10000)) + ttl_ms))
  end
end
local was_behind = redis.call('HGET', lane, 'behind')
local behind = stamp_last - raw_us > 1000000 -- its own clock: time that nobody has vouched for yet stands still
if behind and not was_behind then
  redis.call('HSET', lane, 'behind', '1')
  journal_add(journal, 'clock', '', '', '', '', '', '', text_of(math.floor((stamp_last - raw_us) / 1000)) .. ' ms behind')
elseif was_behind and not behind then
  redis.call('HDEL', lane, 'behind')
end

if lane_had[11] and whole(string.match(lane_had[11], '^%d+')) <= now then
  redis.call('HDEL', lane, 'follow')
end
local answers = { text_of(now), text_of(stamp_last) .. (older_ms > 0 and '|' .. text_of(older_ms) or ''), whole(lane_had[3]), '-1', pending_first, due_first, '-1',
  ttl_ms, text_of(term_now) .. (lane_had[11] and 'f' or '') .. (paused and '|' .. paused or ''), text_of(math.floor(raw_us / 1000) - now) .. '|' .. text_of(offset) .. '|' .. text_of(turn_now)
    .. (is_late and '|late' or witnessed and '|' .. text_of(witnessed) or '') }
local SLICE = 1000 -- unpack() has room for about 8000
local signals = 8 + identity_count -- the one before the first of them
local there = 0
for first = signals + 1, #KEYS, SLICE do
  there = there + redis.call('EXISTS', unpack(KEYS, first, math.min(first + SLICE - 1, #KEYS)))
end
local function heal_signal(name)
  if redis.call('EXISTS', name) == 0 then
    -- Behind all that its reader has read, though the clock may have gone back since.
    local ms = math.floor(math.max(stamp_last, now_us) / 1000) + 1
    redis.call('XADD', name, text_of(ms) .. '-0', 't', 'remade')
  end
end
local ids, numbers, says = {}, {}, {}
for i = 1, identity_count do
  local name, takes = ARGV[13 + 2 * i], ARGV[14 + 2 * i]
  if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
    answers[#answers + 1] = -1
  else
    if term == term_now then
      redis.call('ZADD', keepalive, from + ttl_ms, name)
    else
      redis.call('ZADD', keepalive, 'GT', from + ttl_ms, name)
    end
    answers[#answers + 1] = counts[i]
    if there < identity_count then
      heal_signal(KEYS[signals + i])
    end
    local at = #ids + 1
    ids[at], numbers[at] = string.match(name, '^(.*)%.(%d+)$')
    if takes == '-2' then
      says[at] = numbers[at] .. '|0|' .. ARGV[2] .. '|0'
    elseif takes ~= '-1' then
      says[at] = numbers[at] .. '|' .. takes .. '|' .. ARGV[2]
    elseif ails ~= '0' then
      says[at] = numbers[at] .. '|0|' .. ARGV[2] .. '|' .. ARGV[4]
    end
  end
end

-- What somebody else put in the place of one of these two must not end leases.
local LATE_MAX = 1000000 -- no renewal comes so late: then somebody else wrote that
local function fields_of(name, fields, first)
  local had = redis.pcall('HMGET', name, unpack(fields, first, math.min(first + SLICE - 1, #fields)))
  return had.err and {} or had
end
for first = 1, #ids, SLICE do
  local words = {}
  for i, had in ipairs(fields_of(open, ids, first)) do
    local at = first + i - 1
    local n, by, said = string.match(had or '', '^(%d+)|[^|]*|(%d+)|?(.*)$')
    if n == numbers[at] and (said == '0' or whole(by) > seq and whole(by) - seq < LATE_MAX) then
      -- A later renewal has been here.  Or it drains, or is in use no more (see thaw): no renewal opens it again.
    elseif says[at] then
      words[#words + 1], words[#words + 2] = ids[at], says[at]
    elseif had then
      redis.call('HDEL', open, ids[at])
    end
  end
  if #words > 0 then
    redis.call('HSET', open, unpack(words))
  end
end
local names = {}
for a = 15 + 2 * identity_count, #ids > 0 and #ARGV or 0, 2 do
  names[#names + 1] = ARGV[a]
end
for first = 1, #names, SLICE do
  for i, had in ipairs(fields_of(handlers, names, first)) do
    if not had then
      redis.call('HSET', handlers, names[first + i - 1], ARGV[14 + 2 * identity_count + 2 * (first + i - 1)])
    end
  end
end
local head = redis.call('ZRANGE', keepalive, 0, 0, 'WITHSCORES')
if head[2] then
  local ends = math.max(tonumber(head[2]), whole(redis.call('HGET', lane, 'hold')))
  answers[4] = instant(now + ends - (is_vouched and lease or lease_now))
end
local registered = redis.pcall('HLEN', handlers)
answers[7] = type(registered) == 'number' and registered or -1
return answers
