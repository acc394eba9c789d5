--[[
dispatch: accept jobs and grant each to the first of its targets with room.

KEYS[1] lane       hash    stamp, counters
KEYS[2] open       hash    id -> number|takes|seq[|down]
KEYS[3] jobs       hash    key -> record
KEYS[4] pending    zset    key -> by when its start must be acknowledged
KEYS[5] due        zset    k:KEY -> when
KEYS[6] payloads   hash    key -> payload
KEYS[7] handlers   hash    names ever registered -> options
KEYS[8] kept       zset    (length, job id, key) of some jobs -> until when their answers are remembered
KEYS[...] rest     targets: stream:W, owned:W each; then items: result:ID KEY, unassigned:H each; then, where an id
                           was given, letters; and where the lane follows some jobs, letters and journal
ARGV[1] generation      str
ARGV[2] pending_ms       int   > 0
ARGV[3] queued_jobs_max  int   0: the server is full, only answer: whatever must be written is FULL
ARGV[4] refused_ms       int   > 0: former calls may be under way, and for so long no "no" is taken back
ARGV[5] expects          str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[6] target_count     int   how many targets; (worker id, number) each follow
ARGV[...] items          key, job id, handler, kind j|s|? (as registered), flags, delay_ms, ranked targets, payload each
                         flags: k the name need not be registered, u take it without an owner when no target has
                         room; where somebody waits it is anyway.  Before them, for a key with a live job (nothing
                         refuses it): a attach to it, if handler and payload are the same, b whatever they are;
                         q<N> queue behind it with N others at most, r likewise alone, and stop it, c alone; h as its
                         handler's options say.  Then a comma and what its record has in `more`.  A digest there says
                         that its id was given to it, and may be given again; `f`, how long the payload is: what stands
                         behind that are its followers, see lib/channel

Uses     lane, (typed), expected, record, batch, (lapse), (wait), (pause), place, (queue), (keep), (journal), (follow)
Returns  per item: OK <owner, - or unassigned> | EXISTS <state> <owner> <job id> <handler> <kind j|s> |
         ATTACHED <state> <owner> <job id> <handler> <kind> | ENDED (a repeat, and the job is over) |
         REPLAYED <job id> <handler> (likewise, and that one was made from its dead letter) |
         CONFLICT <handler> <digest> (the id is that of a job with another handler or payload) | FULL <queued> | UNKNOWN | NOROOM
         | SERVICE (it must begin by some time, and services are not told when)
         | QUEUED <due: 1 if there is work for a sweeper, else 0> | LINE <N> | STOPPING <job id> | DIFFERS <job id> <handler>
         | POLICY <q<N>, r, c, a or b> (h was asked: come again with this)
         | ELSEWHERE <worker id> <number> (its payload is in the stream of a worker that was not passed as a target)
         | MALFORMED (the key has a record that cannot be read, or unassigned:H is something else)
Errors   POOLDATALOST <lane>  the pool's data are not those this caller joined
Cost     O(1) per item; 1 command each (2 more where an id was given), 11 a call, 3 a target, 2 a handler
Why Lua  look-up, claim, record and announcement are one step, else a crash between two of them
         leaves a job that was accepted but never reaches a worker.  Dispatch is the grant.

What is refused although a former call with it may still come is refused for good: the answer stands where the
outcome would, so that nobody who was told "no" finds that it ran.
]]
local REFUSED = 'refused\n'
local arg, k = read_targets(6, 9)
local queued = redis.call('ZCARD', pending) + whole(lane_had[3]) + whole(lane_had[4])
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
local behind = k + (#ARGV - arg + 1) / 4 -- of the items' keys
local letters, journal = KEYS[behind], KEYS[behind + 1]
if letters then
  redis.call('HLEN', letters)
end
-- Reads that raise on a key of the wrong type must come before the first write; of one handler's keys
-- that fails its own items alone.
local unfit, results = {}, {}
for i = k + 1, behind - 1, 2 do
  if unfit[KEYS[i]] == nil then
    local fit, is_there = fits(KEYS[i], 'zset')
    unfit[KEYS[i]], queues[KEYS[i]] = not fit, is_there
  end
  results[#results + 1] = KEYS[i - 1]
end
-- Hardly ever has one of them an outcome: only then each is asked for by itself.
local has_ended = false
for i = 1, #results, ARGS_MAX do
  has_ended = redis.call('EXISTS', unpack(results, i, math.min(i + ARGS_MAX - 1, #results))) > 0 or has_ended
end
read_records(arg, 8)
local known, limited = {}, {} -- handlers; of those whose callers do not know them, whether jobs must begin in time
local answers = {}
local refused = {} -- result:ID KEY -> (job id, key), what stands there

local function may(flags, letter)
  return string.find(flags, letter, 1, true) ~= nil
end

-- The handler as it is registered, and the job's kind.
local function looked_up(handler, kind)
  if known[handler] == nil then
    known[handler] = redis.call('HGET', handlers, handler)
  end
  if kind == '?' then
    if limited[handler] == nil then
      limited[handler] = string.find(known[handler] or '', OPTIONS) ~= nil
    end
    kind = string.match(known[handler] or '', '^[js]') or 'j'
  end
  return known[handler], kind
end

-- late meeting
local function refuse(answer, result, id, key, more)
  -- Not of a member of a batch that found no room: it comes again, and nobody was told so.
  if refused_ms > 0 and not (string.find(answer, '^FULL') and more_of(more, 'b')) then
    refused[result] = { pair_of(id, key), REFUSED .. answer }
  end
  return answer
end

-- Whether a job is not the one that this id was given to before.  One that was given none has no digest: who names
-- it by the id that we made has not asked for it before.
local function conflict(digest, handler, more, its_handler)
  local its_digest = more_of(more, 'd')
  if digest and (its_handler ~= handler or its_digest ~= digest) then
    return 'CONFLICT ' .. (its_handler or '-') .. ' ' .. (its_digest or '-')
  end
end

-- What is said of one that is over; its outcome, or its letter.
local function ended(text, digest, handler)
  local more = string.match(text, '^%l+|[^|\n]*|[^|\n]*|[^|\n]*|[^|\n]*|([^|\n]*)|') or ''
  local its_handler, anew = more_of(more, 'h'), more_of(more, 'y')
  local differs = conflict(digest, handler, more, its_handler)
  return differs or (anew and 'REPLAYED ' .. anew .. ' ' .. its_handler) or 'ENDED'
end

-- Whether the live job is of the same handler and payload; nil: that is to be read elsewhere.
local function is_same(key, r, handler, payload)
  if r[HANDLER] ~= handler then
    return false
  elseif r[STATE] ~= 'P' or has(r, 'p') then
    return redis.call('HGET', payloads, key) == payload
  end
  for _, target in ipairs(targets) do
    if target.name == r[OWNER] then
      local entry = typed('XRANGE', target.stream, r[EPOCH] .. '-0', r[EPOCH] .. '-0')[1]
      return entry ~= nil and entry[2][6] == payload
    end
  end
end

local function enqueue(key, live, r, delay_ms, policy, line_max, payload)
  local ids, is_due = line_of(key), 0
  local is_alone_there = policy ~= 'q'
  if not is_alone_there and #ids >= line_max then
    return 'LINE ' .. text_of(line_max)
  elseif queued_jobs_max == 0 or queued - (is_alone_there and #ids or 0) >= queued_jobs_max then
    return 'FULL ' .. queued -- those whose place it takes make room
  end
  if is_alone_there then
    is_due = supersede(key, live, ids, r[ID], policy == 'r') and 1 or 0
    ids = {}
  end
  stand_behind(key, live, r, ids, delay_ms, payload)
  if journal then
    journal_followed(journal, 'accepted', key, r, '')
  end
  queued = queued + 1
  return 'QUEUED ' .. is_due
end

local function keep_followers(key, id, text)
  later('HSET', payloads, '\f' .. pair_of(id, key), text)
end

-- What is said of a job whose key has a live one.
local function meet(key, live, id, handler, kind, flags, delay_ms, payload, digest, more, followers)
  local facts = table.concat({ live[STATE], live[OWNER] ~= '' and live[OWNER] or '-', live[ID], live[HANDLER], live[KIND] }, ' ')
  if has(live, 'n') then
    write_batch()
    local mine = parse(redis.call('HGET', jobs, queued_name(key, id)))
    if mine then
      return conflict(digest, handler, mine[MORE], mine[HANDLER]) or 'QUEUED 0', true
    end
  end
  local policy, line_max = string.match(flags, '^([abchqr])(%d*)')
  if policy == 'h' then
    local said = string.match(looked_up(handler, kind) or '', '|([abcqr]%d*)$')
    if said then
      return 'POLICY ' .. said, true
    end
    policy = nil
  end
  if not policy then
    return 'EXISTS ' .. facts
  elseif policy == 'a' or policy == 'b' then
    if string.sub(live[INTENT], 1, 1) == 's' then
      return 'STOPPING ' .. live[ID]
    end
    local same = policy == 'b' or is_same(key, live, handler, payload)
    if same == nil then
      return 'ELSEWHERE ' .. string.gsub(live[OWNER], '%.(%d+)$', ' %1'), true
    end
    return same and 'ATTACHED ' .. facts or 'DIFFERS ' .. live[ID] .. ' ' .. live[HANDLER]
  end
  local registered, its_kind = looked_up(handler, kind)
  if not registered and not may(flags, 'k') then
    return 'UNKNOWN'
  end
  local r = new_record(its_kind, id, handler)
  if not take_more(r, more, kind == '?' and registered) then
    return 'SERVICE'
  end
  flag(r, 'p', #payload > INLINE_BYTES_MAX)
  local answer = enqueue(key, live, r, delay_ms, policy, tonumber(line_max) or 0, payload)
  if string.sub(answer, 1, 1) ~= 'Q' then
    return answer
  end
  if followers then
    keep_followers(key, id, followers)
  end
  return answer, true
end
-- end meeting

local function admit(key, id, handler, kind, flags, delay_ms, ranked, payload, result, unassigned)
  local more, digest, followers = '', nil, nil
  if #flags > 2 then
    flags, more = string.match(flags, '^([^,]*),?(.*)$')
    digest = more_of(more, 'd')
    local size = more_of(more, 'f')
    if size then
      payload, followers = string.sub(payload, 1, size), string.sub(payload, size + 1)
    end
  end
  if unfit[unassigned] then
    return 'MALFORMED'
  elseif has_ended and redis.call('EXISTS', result) == 1 then
    local text = typed('GET', result)
    local refusal = type(text) == 'string' and string.match(text, '^' .. REFUSED .. '(.-) *$') -- spaces: see muster
    return refusal or type(text) == 'string' and ended(text, digest, handler) or 'ENDED'
  elseif digest and redis.call('HEXISTS', letters, pair_of(id, key)) == 1 then
    return ended(redis.call('HGET', letters, pair_of(id, key)), digest, handler)
  end
  local live = record_of(key)
  if live then
    local r = parse(live)
    if not r then
      return 'MALFORMED'
    end
    if r[ID] == id then
      local differs = conflict(digest, handler, r[MORE], r[HANDLER])
      if differs then
        return differs
      end
      return 'OK ' .. (r[STATE] == 'U' and 'unassigned' or r[OWNER] ~= '' and r[OWNER] or '-')
    end
    if digest and more_of(r[MORE], 'l') == id then
      return conflict(digest, handler, r[MORE], r[HANDLER]) or 'REPLAYED ' .. r[ID] .. ' ' .. r[HANDLER]
    end
    local answer, is_open = meet(key, r, id, handler, kind, flags, delay_ms, payload, digest, more, followers)
    return is_open and answer or refuse(answer, result, id, key, more)
  end
  if queued >= queued_jobs_max then
    return refuse('FULL ' .. queued, result, id, key, more)
  end
  local registered, its_kind = looked_up(handler, kind)
  if not registered and not may(flags, 'k') then
    return refuse('UNKNOWN', result, id, key, more)
  end
  local r = new_record(its_kind, id, handler)
  if (more ~= '' or limited[handler]) and not take_more(r, more, kind == '?' and registered) then
    return refuse('SERVICE', result, id, key, more)
  end
  more = r[MORE]
  local target = delay_ms == 0 and first_with_room(ranked)
  if delay_ms == 0 and not target and not queues[unassigned] and not may(flags, 'u')
    and not (paused and pause_of(key, handler)) then
    return 'NOROOM'
  end
  if #payload > INLINE_BYTES_MAX then
    flag(r, 'p', true)
    later('HSET', payloads, key, payload)
  end
  if followers then
    keep_followers(key, id, followers)
  end
  queued = queued + 1
  tally('dispatched', 1)
  if not known[handler] then
    tally('unknown', 1) -- `recount` cannot know its index
  end
  if delay_ms > 0 then
    r[STATE], r[EPOCH], r[SINCE] = 'W', stamp(), text_of(now + delay_ms)
    flag(r, 'd', true)
    if not has(r, 'p') then
      later('HSET', payloads, key, payload)
    end
    later('HSET', jobs, key, pack(r))
    later('ZADD', due, more ~= '' and due_of(r, r[SINCE]) or r[SINCE], 'k:' .. key)
    tally('waiting', 1)
    tally('delayed', 1)
    if journal then
      journal_followed(journal, 'accepted', key, r, '')
    end
    return 'OK -'
  end
  if more ~= '' then
    await_worker(key, r)
  end
  local is_placed = place(key, r, target, payload, unassigned)
  if journal then
    journal_followed(journal, 'accepted', key, r, '')
  end
  return is_placed and 'OK ' .. target.name or 'OK unassigned'
end

for a = arg, #ARGV, 8 do
  answers[#answers + 1] = admit(ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4],
    tonumber(ARGV[a + 5]), ARGV[a + 6], ARGV[a + 7], KEYS[k], KEYS[k + 1])
  k = k + 2
end
write_batch()
if next(refused) then
  for result, answer in pairs(refused) do
    remember(result, answer[1], answer[2], refused_ms)
  end
  close_kept()
end
close_lane()
return answers
