--[[
replay: make a job of a dead letter, which goes in the same step.

KEYS[1] lane       hash    stamp, counters
KEYS[2] open       hash    id -> number|takes|seq[|down]
KEYS[3] jobs       hash    key -> record
KEYS[4] pending    zset    key -> by when its start must be acknowledged
KEYS[5] payloads   hash    key -> payload
KEYS[6] handlers   hash    names ever registered -> options
KEYS[7] kept       zset    (length, job id, key) of some jobs -> until when their answers are remembered
KEYS[8] parked     zset    (job id, key) -> when it was parked
KEYS[9] letters    hash    (job id, key) -> dead letter
KEYS[10] result    str     result:ID KEY of the letter
KEYS[11] unassigned zset   unassigned:H of its handler
KEYS[12] checkpoints hash   the results of its steps, see lib/steps
KEYS[13] due       zset    k:KEY -> when
KEYS[...] rest             targets: stream:W, owned:W each
ARGV[1] generation  str
ARGV[2] pending_ms       int   > 0
ARGV[3] queued_jobs_max  int   > 0
ARGV[4] known_ms         int   > 0; how long it is remembered what the letter became
ARGV[5] expects     str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[6] key         str
ARGV[7] id          str   of the letter
ARGV[8] anew        str   id of the job that is made
ARGV[9] handler     str   of the letter, as its caller has read it
ARGV[10] ranked     str   targets, by their places
ARGV[11] target_count int how many targets
ARGV[...] items           (worker id, number) of each

Uses     lane, (typed), expected, record, batch, lapse, wait, (pause), place, keep, steps
Returns  OK <job id> <handler> (again: the job that was made of it first; - if its handler is not known) | EXISTS <state> <owner> <job id> <handler> <kind j|s> |
         FULL <queued> | UNKNOWN (its handler was never registered) | NOLETTER | MOVED_ON <handler> |
         MALFORMED (the letter, or the record of its key, cannot be read, or unassigned:H is something else)
Errors   POOLDATALOST <lane>
Cost     O(targets); 23 commands, 3 a target
Why Lua  a crash between the job and the end of its letter would leave both, or none; and a repeat after an unknown
         outcome finds what the first one did.

    letter, no job --> job (pending, or unassigned) with a new id, whose lineage is the letter's;
                       and what it may take to begin counts from now on;
                       what is remembered of the old id names the new one, and no letter any more
]]
local arg, k = read_targets(11, 14)
redis.call('ZCARD', parked)
redis.call('HLEN', payloads)
redis.call('ZCARD', due)
redis.call('HLEN', checkpoints)
local queued = redis.call('ZCARD', pending) + whole(lane_had[3]) + whole(lane_had[4])
local is_fit, is_there = fits(unassigned, 'zset')
queues[unassigned] = is_there
local pair = pair_of(id, key)
local letter = redis.call('HGET', letters, pair)
if not letter then
  local text = typed('GET', result)
  local more = type(text) == 'string' and string.match(text, '^parked|[^|\n]*|[^|\n]*|[^|\n]*|[^|\n]*|([^|\n]*)|')
  local made = more and more_of(more, 'y')
  return made and table.concat({ 'OK', made, more_of(more, 'h') or '-' }, ' ') or 'NOLETTER'
end
local head, cause, payload = string.match(letter, '^(parked|[^\n]*|)([^|\n]*\n[^\n]*\n)[^\n]*\n(.*)$')
local before, more = string.match(head or '', '^(.*|)([^|]*)|$')
local its_handler = more and more_of(more, 'h')
if not is_fit or not its_handler then
  return 'MALFORMED'
elseif its_handler ~= handler then
  return 'MOVED_ON ' .. its_handler
end
read_records(6, #ARGV)
local live = record_of(key)
if live then
  local r = parse(live)
  return not r and 'MALFORMED'
    or table.concat({ 'EXISTS', r[STATE], r[OWNER] ~= '' and r[OWNER] or '-', r[ID], r[HANDLER], r[KIND] }, ' ')
elseif queued >= queued_jobs_max then
  return 'FULL ' .. queued
elseif redis.call('HEXISTS', handlers, handler) == 0 then
  return 'UNKNOWN'
end
-- Frees, so that a full server lets the rest pass.
redis.call('ZREM', parked, pair)
redis.call('HDEL', letters, pair)
local r = new_record(more_of(more, 'k') or 'j', anew, handler)
local inherited = {}
for each in string.gmatch(more, '[^,]+') do
  -- Of f only what says that there are followers; others have been released, see lib/channel.
  inherited[#inherited + 1] = (string.find(each, '^[drswx]') or string.find(each, '^f%d+$')) and each or nil
end
r[MORE] = with_more(from_now(table.concat(inherited, ',')), 'l', id)
if not more_of(more, 'e') then
  r[MORE] = with_more(r[MORE], 'o', more_of(more, 'o') or id)
end
if #payload > INLINE_BYTES_MAX then
  flag(r, 'p', true)
  later('HSET', payloads, key, payload)
end
local followers = redis.call('HGET', payloads, '\f' .. pair)
if followers then
  redis.call('HDEL', payloads, '\f' .. pair)
  redis.call('HSET', payloads, '\f' .. pair_of(anew, key), followers)
end
local steps = redis.call('HGET', checkpoints, letters_steps(pair))
if steps then -- of what was edited there are none any more, see letter
  redis.call('HDEL', checkpoints, letters_steps(pair))
  redis.call('HSET', checkpoints, steps_name(key), steps)
  flag(r, 's', true)
end
tally('dispatched', 1)
tally('replayed', 1)
await_worker(key, r)
place(key, r, first_with_room(ranked), payload, unassigned)
write_batch()
remember(result, pair, before .. with_more(more, 'y', anew) .. '|' .. cause, text_of(known_ms))
close_kept()
close_lane()
return 'OK ' .. anew .. ' ' .. handler
