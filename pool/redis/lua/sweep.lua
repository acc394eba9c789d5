--[[
sweep: list what is overdue, and take the sweeper's lock unless another holds it.

KEYS[1] lane       hash    counters
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    field `sweeper` -> holder|until|through: by when all that was due has been listed
KEYS[4] jobs       hash    key -> record
KEYS[5] pending    zset    key -> by when its start must be acknowledged
KEYS[6] due        zset    k:KEY, o:LANE, b:BATCH, s: -> when
KEYS[7] handlers   hash    name -> options
KEYS[8] deaths     zset    PROCESS.MS -> when it died; see fence
KEYS[9] open       hash    id -> number|takes|seq[|down]
ARGV[1] generation  str
ARGV[2] holder       str   identity of the sweeper
ARGV[3] lock_ms      int   how long the lock holds
ARGV[4] keys_max     int   how many at most
ARGV[5] skip         int   how many of the earliest to leave out: nothing could be done about them

Uses     lane, record, lapse, marks, hung
Returns  server ms, earliest deadline left (ms; -1: none), empty: we hold the lock, else until when another does if
         something that was listed before is still overdue (ms; 0: nothing is), then per overdue key:
         pending|due, key, record without void marks, state of its owner (none | live | hung | gone), options of
         its handler; hung: it has not acknowledged this start, and its event loop hangs.  Or out, a lane, and three
         that say nothing: there are messages to that lane, see lib/channel; likewise batch and its id, see
         lib/members; likewise schedules, there are some to fire
Errors   POOLDATALOST <lane>
Cost     O(keys * log n); 4 commands a key
Why Lua  SetIfNotExists with an expiry on the server's clock; two sweepers would be harmless, but wasteful.

    free, over, or of a clock that went back --> ours: list all, through = now, until = now + lock_ms
    ours                                     --> likewise
    another's                                --> list what is due since `through`, through = now
    ... and that is a full page              --> ours until the same moment: its pages need one who turns them

So each overdue key is listed once while the lock holds, by whoever comes first, and none waits for its end but what
was listed to somebody who died.
]]
redis.call('ZCARD', keepalive)
redis.call('ZCARD', deaths)
redis.call('HLEN', jobs)
redis.call('HLEN', handlers)
local held_by, held_until, through =
  string.match(redis.call('HGET', cleanup, 'sweeper') or '', '^(.*)|(%d+)|(%d+)$')
-- Later than any lock could end means that the clock went back: then it is nobody's.
local is_ours = true
if held_by and held_by ~= holder and tonumber(held_until) > now and tonumber(held_until) <= now + lock_ms then
  is_ours = false
end
local since = is_ours and '-inf' or through
local passed_over = is_ours and skip or 0
local due_had = redis.call('ZRANGEBYSCORE', due, since, now, 'LIMIT', passed_over, keys_max)
local pending_had = redis.call('ZRANGEBYSCORE', pending, since, now, 'LIMIT', passed_over, keys_max)
local left = '0'
for _, index in ipairs(is_ours and {} or { pending, due }) do
  if redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. since, 'LIMIT', 0, 1)[1] then
    left = held_until
  end
end
local is_full = #due_had >= keys_max or #pending_had >= keys_max
if is_ours or #due_had + #pending_had > 0 then
  redis.call('ZREM', pending, '\n')
  local by, ends = held_by, held_until
  if is_ours or is_full then
    by, ends = holder, is_ours and text_of(now + lock_ms) or held_until
  end
  redis.call('HSET', cleanup, 'sweeper', table.concat({ by, ends, text_of(now) }, '|'))
end

-- No delay is so long: what stands behind it would never come.
local DELAY_MS_MAX = 32000000000
for _, index in ipairs(is_ours and { pending, due } or {}) do
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', index, '(' .. text_of(now + DELAY_MS_MAX), '+inf', 'LIMIT', 0, 16)) do
    redis.call('ZADD', index, now, member)
  end
end
local answers = { text_of(now), '-1', (is_ours or is_full) and '' or left }
local function add(index, key)
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  local by = r and index == 'due' and (r[STATE] == 'P' or r[STATE] == 'U') and r[INTENT] == '' and begin_by(r)
  if by and by > now then -- somebody has moved it there
    redis.call('ZADD', due, text_of(by), 'k:' .. key)
    return
  end
  local stands = r and (index == 'pending' and r[STATE] == 'P' or index == 'due' and (r[STATE] == 'W' or has(r, 'd')))
  if not text or (r and not stands) then
    -- Only an index entry, that no record confirms.
    redis.call('ZREM', index == 'pending' and pending or due, index == 'pending' and key or 'k:' .. key)
    return
  end
  local owner = 'none'
  if r and r[OWNER] ~= '' then
    local gone = redis.call('HEXISTS', cleanup, r[OWNER]) == 1 or not redis.call('ZSCORE', keepalive, r[OWNER])
    local hung = not gone and index == 'pending' and is_hung(r[OWNER])
    owner = gone and 'gone' or hung and 'hung' or 'live'
  end
  if r then
    text = judged(text, r)
  end
  local options = r and redis.call('HGET', handlers, r[HANDLER]) or ''
  for _, value in ipairs({ index, key, text, owner, options }) do
    answers[#answers + 1] = value
  end
end
for _, member in ipairs(due_had) do
  if string.sub(member, 1, 2) == 'k:' then
    add('due', string.sub(member, 3))
  elseif string.find(member, '^o:%d+$') then
    for _, value in ipairs({ 'out', string.sub(member, 3), '', 'none', '' }) do
      answers[#answers + 1] = value
    end
  elseif member == 's:' then
    for _, value in ipairs({ 'schedules', '', '', 'none', '' }) do
      answers[#answers + 1] = value
    end
  elseif string.find(member, '^b:[!-~]+$') then
    for _, value in ipairs({ 'batch', string.sub(member, 3), '', 'none', '' }) do
      answers[#answers + 1] = value
    end
  end
end
for _, key in ipairs(pending_had) do
  add('pending', key)
end
local first
for _, index in ipairs({ pending, due }) do
  local head = redis.call('ZRANGEBYSCORE', index, '(' .. text_of(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if head[2] and (not first or tonumber(head[2]) < first) then
    first = tonumber(head[2])
  end
end
if first then
  answers[2] = instant(first)
end
if is_full then
  answers[2] = text_of(now)
end
return answers
