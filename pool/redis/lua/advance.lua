--[[
advance: every change of a job after its dispatch, in batches, under one guard.

KEYS[1] lane       hash    stamp, counters
KEYS[2] keepalive  zset    identity -> lease end, in lease time
KEYS[3] cleanup    hash    identity -> claim; a field here is what fences
KEYS[4] open       hash    id -> number|takes|seq[|down]
KEYS[5] jobs       hash    key -> record
KEYS[6] pending    zset    key -> by when its start must be acknowledged
KEYS[7] due        zset    k:KEY -> when
KEYS[8] payloads   hash    key -> payload
KEYS[9] checkpoints      hash    key -> state, steps of a job -> results: see lib/steps.lua
KEYS[10] parked    zset    (job id, key) -> when it was parked
KEYS[11] letters   hash    (job id, key) -> dead letter
KEYS[12] journal   stream  abnormal edges
KEYS[13] source_owned   set     keys the source runs
KEYS[14] source_stream  stream  the source's starts
KEYS[15] trials    hash    identity -> epoch[.bits]|key of the suspected job that it began last, and that may kill it
KEYS[16] kept      zset    (length, job id, key) of some jobs -> until when their outcomes are remembered
KEYS[17] attempts  hash    key -> job id, then its failed attempts; tabs between
KEYS[...] rest     targets: stream:W, owned:W each; then what each edge takes: s inbox:K; d result:I, inbox:K;
                   c x w g these and unassigned:H; then unassigned:H of each handler that the caller asks about
ARGV[1] generation  str
ARGV[2] guard        str   own: the source asks for itself; reap: the holder of its claim asks;
                           free: nobody owns it, or its owner is fenced or unregistered, or has not acknowledged
                           the start by its time, and hangs or comes too late: see lib/lapse.lua
ARGV[3] source       str   identity that must stand as the owner; empty for none
ARGV[4] claim        str   holder|fence, for reap
ARGV[5] pending_ms   int   > 0
ARGV[6] reap_ms      int   > 0; by how much a reap batch moves its deadline on
ARGV[7] parked_ms    int   > 0; how long dead letters are kept
ARGV[8] brief_ms     int   > 0; how long an outcome is kept in any case
ARGV[9] results_max  int   bytes of outcomes of the lane, above which none is kept longer than that
ARGV[10] says        str   takes|seq of the source, or nothing: see lib/says.lua
ARGV[11] expects     str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[12] target_count int   how many targets; (worker id, number) each follow
ARGV[...] items      edge, key, epoch, job id, ttl_ms, x, y, z each; ttl_ms: how long the outcome is kept
    a acknowledge  x 1: it has begun, so that a stop which was asked for does not keep it; from R it is a repeat;
                   y: of a suspect, how unlikely it is that its worker dies now by chance, in tenths of a bit
    l limit        x in how many ms, y 1: of a run begun anew under its epoch: a time-out of the one before is
                   taken back           writes the run-time limit into `due`
    s seen         x message (see lib/inbox)  removes messages up to it from the inbox; none if it is not there
    v save         x state, y message or nothing, z number   stores it, and removes messages as s does
    t step         x its name, y its result                  stores it, unless it has one
    n progress     x done/total/note                         rewrites how far it is, with the time, in `more`
    o over                                    its trial: it has lived for long enough
    d done         x result, y its further followers, see lib/channel
    c cancel       x cause, z 1: it has begun; the key of a queued one is its name, see lib/queue.lua
    x park         x cause, y error[, newline, attempt], z 1: it has begun; p: as a mark of g
    w wait         x delay ms, y next attempt[ mark], z error[, newline, attempt]
                   attempt: what is to be kept of the one that has failed, JSON
    g grant        x ranked targets, y mark, z checkpoint
                   mark: letters, then = and its crash marks from now on, or nothing and they stay
                   r counts a requeue, and asks for acknowledgement before the handler starts; a asks for
                   that alone; l: the source leaves it to others, whose programs know its version and codec;
                   m counts a crash; h (of w): it is held, see record; f: it was handed over in order
                   p, the last one: only while its start is not acknowledged; REFUSED after that
                   z: empty keeps the checkpoint, else = then its new bytes
    From which states, and to which: TABLE in core/lifecycle.py.  Of it and of redis/commands/edges.py the part
    `life` is made, when this is loaded: FROM has the states of each edge, TAKES how many keys it takes.

Uses     life, lane, lease, (typed), expected, record, batch, (lapse), (wait), (pause), place, renewed, (queue), keep, inbox, (steps), (out), (channel), (journal), (follow), finish, (hung), says
Returns  number of unassigned keys (negative: the caller asks about handlers, and could be given none of these keys:
         they are of other handlers, or paused), then per item: OK[ <waiters>] | OK <waiters or -> <messages that nobody took> (it
         has ended, and something is due: the next one of its key has its turn, or it has followers) (acknowledge: OK <flags>[ <waiters>]) |
         STOPPED <cause> (acknowledge: a stop was asked for, and it has not begun: do not start) |
         LATE (acknowledge: it is too late to begin it; whoever sweeps ends it) |
         GRANTED <owner> <epoch> | UNASSIGNED | REPEAT <word> (this writer's own outcome stands, or a later state; failed: its
         attempt was noted before, and others have it now) |
         SETTLED <word> <owner> <epoch> | FENCED | TIMEDOUT (the attempt must end as timed out) |
         MORE (some of the messages are taken out) | FULL (no memory for a state: it was not saved, no message removed) |
         STANDS <result> (of the step, another one) | OWNED <owner> | REFUSED <state> | MOVED_ON <handler> (its unassigned keys were not passed) | MALFORMED
         (its record or steps cannot be read, or its inbox or unassigned:H is of another type)
Errors   POOLDATALOST <lane>, POOLGONE <identity or claim>
Cost     O(1) per item; settling straight from pending takes 1 command each and 16 a call
Why Lua  who may, what is, and what shall be are one step: two owners could otherwise both commit.
]]
local SEEN_MAX, SEEN_BYTES_MAX = 500, 1024 * 1024 -- messages taken out by one call
local seen, seen_bytes = 0, 0
local LEFT_BYTES_MAX = 256 -- of the names of workers that have left a job to others

local fence = source ~= '' and redis.call('HGET', cleanup, source)
local registered = source ~= '' and redis.call('ZSCORE', keepalive, source)
if guard == 'own' and (fence or not registered) then
  return redis.error_reply('POOLGONE ' .. source)
elseif guard == 'reap' and fence ~= claim then
  return redis.error_reply('POOLGONE ' .. claim)
end
-- Reads that raise on a key of the wrong type must come before the first write.  One that belongs to a
-- job or a handler fails its own edges alone.
redis.call('HLEN', jobs)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('HLEN', checkpoints)
redis.call('SCARD', source_owned)
redis.call('XLEN', source_stream)
local arg, k = read_targets(12, 18)
local checked, unfit, begins, may_go, saves = k, {}, false, false, false
local function check(name, kind)
  if unfit[name] == nil then
    local fit, is_there = fits(name, kind)
    unfit[name] = not fit
    queues[name] = is_there and kind == 'zset'
  end
end
for a = arg, #ARGV, 8 do
  local edge = ARGV[a]
  if edge == 's' or edge == 'v' then
    check(KEYS[checked], 'list')
    saves = saves or edge == 'v'
  elseif edge == 'c' or edge == 'x' or edge == 'g' or (edge == 'w' and guard == 'free') then
    check(KEYS[checked + 2], 'zset')
  end
  begins = begins or edge == 'a' or edge == 'o'
  may_go = may_go or TAKES[edge] == 3
  checked = checked + TAKES[edge]
end
if begins then
  redis.call('HLEN', trials)
end
if may_go then
  redis.call('ZCARD', parked)
  redis.call('HLEN', letters)
  redis.call('HLEN', attempts)
end
-- A full server checks memory until a script's first write only: begin with one that frees.  What it refuses
-- before that says that it is full: the field is there.
local refusal = saves and redis.pcall('HSETNX', lane, 'incarnation', generation)
local is_full = type(refusal) == 'table' and refusal.err ~= nil
redis.call('ZREM', pending, '\n')
heed(source)
if guard == 'reap' then
  redis.call('ZADD', keepalive, lease_now + reap_ms, source)
end

-- late rare
local function settled(epoch, result)
  local outcome = typed('GET', result)
  local word, by_epoch, by = string.match(type(outcome) == 'string' and outcome or '', OUTCOME)
  if not word then
    return 'FENCED'
  end
  if by_epoch == epoch and by == source then
    return 'REPEAT ' .. word
  end
  return 'SETTLED ' .. word .. ' ' .. (by ~= '' and by or '-') .. ' ' .. by_epoch
end

-- Keeps the last of a job's failed attempts; a job that does not fail has none.
local function note_attempt(key, r, entry)
  later('HSET', attempts, key, r[ID] .. '\t' .. attempts_of(key, r, attempt_entry(r, entry)))
  r[MORE] = with_more(r[MORE], 't', '')
end

-- w: whether it was carried out before, so that others have gone on since; see note_attempt.
local function has_failed(key, r, y)
  local attempt, mark = string.match(y, '^(%d+) ?(.*)$')
  attempt = attempt and (mark == '' and text_of(tonumber(attempt) - 1) or attempt)
  for number, by in string.gmatch(attempts_of(key, r, ''), '%f[^%z\t]%S+ (%S+) (%S+)[^\t]*') do
    if number == attempt and by == source then
      return true
    end
  end
  return false
end

-- What a mark says (see w and g).
local function take_mark(r, mark)
  local letters, is_given, marks = string.match(mark, '^(%l*)(=?)(.*)$')
  if is_given == '=' then
    r[MARKS] = marks
  end
  if string.find(letters, 'r', 1, true) then
    r[REQUEUES] = text_of(tonumber(r[REQUEUES] ~= '' and r[REQUEUES] or '0') + 1)
    tally('requeued', 1)
  end
  if string.find(letters, '[ra]') then
    flag(r, 'a', true)
  end
  if string.find(letters, 'm', 1, true) then
    tally('crashed', 1)
  end
  if string.find(letters, 'l', 1, true) then
    local had = more_of(r[MORE], 'n')
    local names = string.match(source, '^(.*)%.%d+$') .. (had and '/' .. had or '') .. '/'
    r[MORE] = with_more(r[MORE], 'n', string.match(string.sub(names, 1, LEFT_BYTES_MAX), '^(.*)/'))
  end
  flag(r, 'h', string.find(letters, 'h', 1, true) ~= nil)
end

-- s: some of them in one call, as they may be many.  What is no message, and was written by somebody else, goes with
-- those before it, or where it is the first.
local function see_messages(inbox, message)
  local most, gone = upto(inbox, message), 0
  while most ~= 1 or gone == 0 do
    local entry = redis.call('LINDEX', inbox, gone)
    if not entry or (gone >= most and string.find(entry, '^%d+|')) then
      break
    elseif seen >= SEEN_MAX or (seen_bytes > SEEN_BYTES_MAX and seen > 0) then
      redis.call('LTRIM', inbox, gone, -1)
      return 'MORE'
    end
    gone, seen, seen_bytes = gone + 1, seen + 1, seen_bytes + #entry
  end
  if gone > 0 then
    redis.call('LTRIM', inbox, gone, -1)
  end
  return 'OK'
end

-- v, t and n: a function of their own, as one may have no more than 60 names from outside.
local function store(edge, key, r, x, y, z, inbox)
  if edge == 't' then
    return store_step(key, r, x, y)
  elseif edge == 'n' then
    r[MORE] = with_more(r[MORE], 'p', text_of(now) .. '/' .. plain(x))
    later('HSET', jobs, key, pack(r))
    return 'OK'
  elseif is_full then
    return 'FULL'
  end
  local by, number = string.match(redis.call('HGET', checkpoints, key) or '', '^(%d+)%.(%d+)|')
  if by == r[EPOCH] and whole(number) > tonumber(z) then
    return 'REPEAT saved' -- this is a late copy, and a later state is stored
  end
  -- All messages that the state holds, however many: or a crash would apply some twice.
  local gone = upto(inbox, y)
  if gone > 0 then
    redis.call('LTRIM', inbox, gone, -1)
  end
  later('HSET', checkpoints, key, r[EPOCH] .. '.' .. z .. '|' .. x)
  if not has(r, 'b') then
    flag(r, 'b', true)
    later('HSET', jobs, key, pack(r))
  end
  return 'OK'
end

-- Its worker says that its loop hangs, and begins nothing more that it has not acknowledged before: see
-- runtime/hang.py.  Or it will be told that it is too late.
local function is_stranded(key, r)
  if r[STATE] ~= 'P' then
    return false
  end
  local late = has(r, 'a') and begin_by(r)
  local by = late and late <= now and late or (is_hung(source) and redis.call('ZSCORE', pending, key))
  return by and tonumber(by) <= now
end

-- Whether one that is acknowledged may begin; then it is too late no more.
local function begin_in_time(key, r)
  local by = begin_by(r)
  if by and by <= now then
    return false
  elseif by then
    r[MORE] = string.sub(string.gsub(',' .. r[MORE], '(,[sx]%d+)/%d+', '%1'), 2)
    if r[INTENT] == '' then
      later('ZREM', due, 'k:' .. key)
      flag(r, 'd', false)
    end
  end
  return true
end

-- Of one that waits until then, and not for a worker any more: when somebody has to come for it.
local function await_turn(r, at)
  local ms, by = string.match(more_of(r[MORE], 's') or '', '^(%d+)(/?)')
  if by == '/' then
    r[MORE] = with_more(r[MORE], 's', ms)
    flag(r, 'a', r[MARKS] ~= '') -- who is suspected asks in any case
  end
  return due_of(r, at)
end

-- Whether a pull of these handlers would be given a key: one that is in front of its queue, and not paused.
local function waits_in(first)
  if redis.call('EXISTS', unpack(KEYS, first)) == 0 then
    return false
  end
  for i = first, #KEYS do
    local head = typed('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
    if head and tonumber(head) < HELD and not (paused and pause_of('', string.match(KEYS[i], ':unassigned:(.*)$'))) then
      return true
    end
  end
  return false
end
-- end rare

local function advance(edge, key, epoch, id, ttl_ms, x, y, z, k)
  local text = record_of(key)
  local r = parse(text)
  if text and not r then
    return 'MALFORMED'
  end
  if not r or r[ID] ~= id then
    return TAKES[edge] >= 2 and settled(epoch, KEYS[k]) or 'FENCED'
  end
  if guard == 'free' and r[OWNER] ~= ''
    and (r[OWNER] ~= source or (registered and not fence and not is_stranded(key, r))) then
    return 'OWNED ' .. r[OWNER]
  end
  if r[OWNER] ~= source or r[EPOCH] ~= epoch then
    return edge == 'w' and has_failed(key, r, y) and 'REPEAT failed' or 'FENCED'
  end
  if not string.find(FROM[edge], r[STATE], 1, true) then
    return 'REFUSED ' .. r[STATE]
  end
  local result, inbox, unassigned = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  if ((edge == 's' or edge == 'v') and unfit[KEYS[k]]) or ((edge == 'g' or r[STATE] == 'U') and unfit[unassigned]) then
    return 'MALFORMED'
  end
  if (edge == 'g' or r[STATE] == 'U') and string.sub(unassigned, -#r[HANDLER] - 12) ~= ':unassigned:' .. r[HANDLER] then
    return 'MOVED_ON ' .. r[HANDLER]
  end
  if (edge == 'g' or edge == 'w') and r[STATE] ~= 'P' and string.sub(y, -1) == 'p' then
    return 'REFUSED ' .. r[STATE]
  end
  local intent = string.sub(r[INTENT], 1, 1)
  if intent == 's' and (edge == 'w' or edge == 'g') then
    return finish(key, r, 'cancelled', ttl_ms, string.sub(r[INTENT], 2), '', result, inbox, unassigned, edge == 'w')
  elseif intent == 't' and (edge == 'd' or edge == 'g') then
    return 'TIMEDOUT'
  end

  if edge == 'd' then
    return finish(key, r, 'done', ttl_ms, '', x, result, inbox, unassigned, true, y ~= '' and y or nil)
  elseif edge == 'c' then
    return finish(key, r, 'cancelled', ttl_ms, x, '', result, inbox, unassigned, z == '1')
  elseif edge == 'x' then
    if z == 'p' and r[STATE] ~= 'P' then
      return 'REFUSED ' .. r[STATE]
    end
    return finish(key, r, 'parked', ttl_ms, x, y, result, inbox, unassigned, z == '1')
  elseif edge == 'a' then
    if intent == 's' and x ~= '1' then
      return 'STOPPED ' .. string.sub(r[INTENT], 2)
    end
    if r[STATE] == 'P' then
      if r[MORE] ~= '' and not begin_in_time(key, r) then
        return 'LATE'
      end
      local payload = payload_of(key, r)
      later('XDEL', source_stream, epoch .. '-0')
      later('ZREM', pending, key)
      later('SADD', source_owned, key)
      if payload then
        later('HSET', payloads, key, payload)
      end
      r[STATE], r[SINCE], r[REQUEUES] = 'R', text_of(now), ''
      if r[MARKS] ~= '' and has(r, 'a') then
        redis.call('HSET', trials, source, epoch .. (y ~= '' and '.' .. y or '') .. '|' .. key)
      end
      flag(r, 'a', false)
      later('HSET', jobs, key, pack(r))
      if lane_had[11] then
        journal_followed(journal, 'started', key, r, '')
      end
    end
    return 'OK ' .. (r[FLAGS] ~= '' and r[FLAGS] or '-') .. (r[WAITERS] ~= '' and ' ' .. r[WAITERS] or '')
  elseif edge == 'l' then
    if intent == 't' and y == '1' then
      r[INTENT], intent = '', ''
    end
    if intent == '' then
      flag(r, 'd', true)
      later('ZADD', due, now + tonumber(x), 'k:' .. key)
      later('HSET', jobs, key, pack(r))
    end
    return 'OK'
  elseif edge == 'o' then
    if string.match(redis.call('HGET', trials, source) or '', '^%d+') == epoch then
      redis.call('HDEL', trials, source)
    end
    return 'OK'
  elseif edge == 'v' or edge == 't' or edge == 'n' then
    return store(edge, key, r, x, y, z, KEYS[k])
  elseif edge == 's' then
    return see_messages(KEYS[k], x)
  end

  -- w and g: the key leaves its owner and keeps its payload, inbox, waiters and checkpoint.
  local payload = payload_of(key, r)
  if payload == false or (payload == nil and redis.call('HEXISTS', payloads, key) == 0) then
    return finish(key, r, 'parked', ttl_ms, 'malformed', 'its payload is gone', result, inbox, unassigned)
  end
  local was = r[STATE]
  local mark = edge == 'g' and y or string.match(y, '^%d+ ?(.*)$') or ''
  local failed, entry = string.match(edge == 'w' and z or '', '^([^\n]*)\n?(.*)$')
  if entry ~= '' then
    note_attempt(key, r, entry)
  elseif string.find(mark, '^%l*m') then
    note_attempt(key, r, '{"type":"crash"}')
  end
  local has_begun = was == 'R' or (was == 'P' and not has(r, 'a')) -- as far as can be known
  local on_trial = was == 'R' and r[MARKS] ~= ''
    and string.match(redis.call('HGET', trials, source) or '', '^%d+') == epoch
  lift(key, r, unassigned)
  if edge == 'w' then
    journal_job(journal, 'retried', key, r, failed)
    r[ACCEPTED] = accepted_of(r)
    local at = text_of(x == '0' and at_once or now + tonumber(x))
    r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'W', '', stamp(), at
    r[ATTEMPT], r[INTENT], r[ERROR] = string.match(y, '^%d+') or r[ATTEMPT], '', plain(failed)
    flag(r, 'r', has_begun or has(r, 'r'))
    local ends = r[MORE] ~= '' and await_turn(r, at) or at
    take_mark(r, mark)
    flag(r, 'd', true)
    if payload then
      later('HSET', payloads, key, payload)
    end
    later('HSET', jobs, key, pack(r))
    later('ZADD', due, ends, 'k:' .. key)
    tally('waiting', 1)
    tally('retried', 1)
    return was == 'P' and r[WAITERS] ~= '' and 'OK ' .. r[WAITERS] or 'OK' -- they were not told that it had begun
  end
  if string.sub(z, 1, 1) == '=' then
    later('HSET', checkpoints, key, '|' .. string.sub(z, 2))
    flag(r, 'b', true)
  end
  if has_begun and guard ~= 'own' then
    flag(r, 'r', true)
  elseif string.find(mark, '^%l*f') then
    flag(r, 'r', false)
  end
  take_mark(r, mark)
  if on_trial then
    flag(r, 'a', true) -- the next owner has it acknowledge first, and begins it alone, as this one did
  end
  if was == 'P' or was == 'R' then
    local is_taken, is_marked = guard ~= 'own', string.find(mark, '^%l*m')
    journal_job(journal, is_taken and 'taken_over' or 'released', key, r, is_marked and 'a crash mark' or '')
  end
  if r[MORE] ~= '' then
    await_worker(key, r)
  end
  local target = first_with_room(x, has_renewed)
  if not place(key, r, target, payload, unassigned, was == 'R' or r[MARKS] ~= '') then
    return 'UNASSIGNED'
  end
  return 'GRANTED ' .. target.name .. ' ' .. text_of(stamp_last)
end

local answers = { 0 }
read_records(arg + 1, 8)
for a = arg, #ARGV, 8 do
  local edge = ARGV[a]
  answers[#answers + 1] = advance(edge, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5],
    ARGV[a + 6], ARGV[a + 7], k)
  k = k + TAKES[edge]
end
write_batch()
close_kept()
close_lane()
local left = whole(lane_had[3]) + (tallies['unassigned'] or 0)
if KEYS[k] and left > 0 and not waits_in(k) then
  left = -left
end
answers[1] = left
return answers
