--[[
dispatch: accept jobs and grant each to the first of its targets with room.

KEYS[1] lane       hash    stamp, counters
KEYS[2] open       hash    id -> number|takes|seq[|down]
KEYS[3] jobs       hash    key -> record
KEYS[4] pending    zset    key -> by when its start must be acknowledged
KEYS[5] due        zset    k:KEY -> when
KEYS[6] payloads   hash    key -> payload
KEYS[7] handlers   hash    names ever registered -> options
KEYS[8] kept       zset    (job id, key) of some jobs -> until when their answers are remembered
KEYS[...] rest     targets: stream:W, owned:W each; then items: result:ID KEY, unassigned:H each
ARGV[1] generation      str
ARGV[2] pending_ms       int   > 0
ARGV[3] queued_jobs_max  int   0: the server is full, only answer: whatever must be written is FULL
ARGV[4] refused_ms       int   > 0: former calls may be under way, and for so long no "no" is taken back
ARGV[5] expects          str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[6] target_count     int   how many targets; (worker id, number) each follow
ARGV[...] items          key, job id, handler, kind j|s|? (as registered), flags, delay_ms, ranked targets, payload each
                         flags: a attach to a live job, k the name need not be registered,
                         u take it without an owner when no target has room; where somebody waits it is anyway

Uses     lane, expected, record, batch, place, keep
Returns  per item: OK <owner, - or unassigned> | EXISTS <state> <owner> <job id> <handler> |
         ATTACHED <state> <owner> <job id> <handler> | ENDED (a repeat, and the job is over) | FULL <queued> | UNKNOWN | NOROOM
         | MALFORMED (the key has a record that cannot be read, or unassigned:H is something else)
Errors   POOLDATALOST <lane>  the pool's data are not those this caller joined
Cost     O(1) per item; 1 command each, 11 a call, 3 a target, 2 a handler
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
-- Reads that raise on a key of the wrong type must come before the first write; of one handler's keys
-- that fails its own items alone.
local unfit, results = {}, {}
for i = k + 1, #KEYS, 2 do
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
local known = {}
local answers = {}
local refused = {} -- result:ID KEY -> (job id, key), what stands there

local function refuse(answer, result, id, key)
  if refused_ms > 0 then
    refused[result] = { pair_of(id, key), REFUSED .. answer }
  end
  return answer
end

local function may(flags, letter)
  return string.find(flags, letter, 1, true) ~= nil
end

local function admit(key, id, handler, kind, flags, delay_ms, ranked, payload, result, unassigned)
  if unfit[unassigned] then
    return 'MALFORMED'
  elseif has_ended and redis.call('EXISTS', result) == 1 then
    local text = redis.pcall('GET', result) -- as a call it would raise on another type
    local is_refused = type(text) == 'string' and string.sub(text, 1, #REFUSED) == REFUSED
    return is_refused and string.sub(text, #REFUSED + 1) or 'ENDED'
  end
  local live = record_of(key)
  if live then
    local r = parse(live)
    if not r then
      return 'MALFORMED'
    end
    if r[ID] == id then
      return 'OK ' .. (r[STATE] == 'U' and 'unassigned' or r[OWNER] ~= '' and r[OWNER] or '-')
    end
    local word = may(flags, 'a') and 'ATTACHED ' or 'EXISTS '
    local facts = table.concat({ r[STATE], r[OWNER] ~= '' and r[OWNER] or '-', r[ID], r[HANDLER] }, ' ')
    return refuse(word .. facts, result, id, key)
  end
  if queued >= queued_jobs_max then
    return refuse('FULL ' .. queued, result, id, key)
  end
  if known[handler] == nil then
    known[handler] = redis.call('HGET', handlers, handler)
  end
  if kind == '?' then
    kind = string.match(known[handler] or '', '^[js]') or 'j'
  end
  if not known[handler] and not may(flags, 'k') then
    return refuse('UNKNOWN', result, id, key)
  end
  local r = new_record(kind, id, handler)
  local target = delay_ms == 0 and first_with_room(ranked)
  if delay_ms == 0 and not target and not queues[unassigned] and not may(flags, 'u') then
    return 'NOROOM'
  end
  if #payload > INLINE_BYTES_MAX then
    flag(r, 'p', true)
    later('HSET', payloads, key, payload)
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
    later('ZADD', due, r[SINCE], 'k:' .. key)
    tally('waiting', 1)
    tally('delayed', 1)
    return 'OK -'
  end
  return place(key, r, target, payload, unassigned) and 'OK ' .. target.name or 'OK unassigned'
end

for a = arg, #ARGV, 8 do
  answers[#answers + 1] = admit(ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4],
    tonumber(ARGV[a + 5]), ARGV[a + 6], ARGV[a + 7], KEYS[k], KEYS[k + 1])
  k = k + 2
end
write_batch()
for result, answer in pairs(refused) do
  remember(result, answer[1], answer[2], refused_ms)
end
close_kept()
close_lane()
return answers
