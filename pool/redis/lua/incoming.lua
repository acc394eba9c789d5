--[[
incoming: carry out what a lane has for this one, behind what it has carried out before; see lib/channel.

KEYS[1] lane       hash    stamp, counters
KEYS[2] jobs       hash    key -> record
KEYS[3] due        zset    k:KEY -> when
KEYS[4] payloads   hash    key -> payload, and where it stands with other lanes
KEYS[5] handlers   hash    names ever registered -> options
KEYS[6] parked     zset    (job id, key) -> when it was parked
KEYS[7] letters    hash    (job id, key) -> dead letter
KEYS[8] journal    stream  abnormal edges
KEYS[9] schedules  hash    name -> schedule, see core/schedules.py
KEYS[...] rest             result:ID KEY, or batch:ID, per item
ARGV[1] generation  str
ARGV[2] from        str   lane A
ARGV[3] root        str   name of the message before the first
ARGV[4] expects     str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[...] items           name, what it says each

Uses     lane, expected, record, batch, lapse, wait, queue, (out), (channel), (members), (settle), (journal), (follow)
Returns  OK[ <1 if there are messages to lanes now, else 0>[ <waiters> <batch>]...][\n<job id>...] (of batches of which
         something has ended; of firings that were left out) |
         APART <name> (that is the last one from A that was carried out, and not among these: nothing is done)
Errors   POOLDATALOST <lane>
Cost     O(items); 12 commands each, 9 a call
Why Lua  what a message causes, and that it was carried out, are one step.

    j DELAY KIND[POLICY] #KEY #ID #HANDLER #MORE #PAYLOAD\n KEY ID HANDLER MORE PAYLOAD     a job to accept
    e INDEX NONCE WORD\n BATCH                                                     how a member of a batch has ended
    o SCHEDULE                                                                     one of its firings was left out

POLICY is what becomes of a firing whose key has a live job, as `dispatch` takes it; `-`, a and b leave it out, and so
does a line that is full: the schedule's lane is sent that, and counts it.  Without one the job stands in the line, whatever there is.
]]
local JOB = '^j (%d+) ([js?])([%-abchqr]?)(%d*) (%d+) (%d+) (%d+) (%d+) (%d+)\n()'
local OVERLAP = '^o ([!-~]+)$'
local COUNTS = '^(%l %d+ %d+ %d+) (%d+) (%d+) (%d+)( .*)$' -- of a schedule: what is before them, fired, missed, overlapped
local END = '^e (%d+) (%S+) ([sfc])\n(.+)$'

redis.call('HLEN', jobs)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('HLEN', handlers)
redis.call('ZCARD', parked)
redis.call('HLEN', letters)
local stands, first = redis.call('HGET', payloads, '\v' .. from) or '-', nil
if stands == root then
  first = 5
end
for a = 5, #ARGV, 2 do
  first = ARGV[a] == stands and a + 2 or first
end
if not first then
  return 'APART ' .. stands
end
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass
is_alone = true -- nothing is collected: one item finds what the one before it has written

local left_out = {}

-- It was counted as fired.  Who changes the schedule meanwhile finds another line, and looks again.
local function count_overlap(name)
  local text = redis.pcall('HGET', schedules, name)
  local before, fired, missed, overlapped, behind = string.match(type(text) == 'string' and text or '', COUNTS)
  if before and whole(fired) > 0 then
    local counts = table.concat({ before, text_of(whole(fired) - 1), missed, text_of(whole(overlapped) + 1) }, ' ')
    redis.call('HSET', schedules, name, counts .. behind)
  end
end

local function accept(text, result)
  local delay_ms, kind, policy, line_max, key_size, id_size, handler_size, more_size, size, at = string.match(text, JOB)
  if not at or #text ~= at - 1 + key_size + id_size + handler_size + more_size + size then
    local pair = 'malformed-' .. stamp() .. ' channel'
    redis.call('ZADD', parked, now, pair)
    redis.call('HSET', letters, pair, 'parked|0||0|' .. text_of(now) .. ',,,|h-|malformed\n\n\n' .. text)
    journal_add(journal, 'malformed', '', '', '', '', '', '', 'from lane ' .. from)
    tally('parked', 1)
    return
  end
  local function take(length)
    at = at + length
    return string.sub(text, at - length, at - 1)
  end
  local key, id, handler, more, payload = take(key_size), take(id_size), take(handler_size), take(more_size), take(size)
  local pair = id .. ' ' .. key
  local live = redis.call('HGET', jobs, key)
  local r = parse(live)
  if redis.call('EXISTS', result) == 1 or redis.call('HEXISTS', letters, pair) == 1
    or (r and r[ID] == id) or redis.call('HEXISTS', jobs, queued_name(key, id)) == 1 then
    return -- of before some data were lost
  end
  local options = redis.call('HGET', handlers, handler)
  local job = new_record(kind ~= '?' and kind or string.match(options or '', '^[js]') or 'j', id, handler)
  if not take_more(job, more, kind == '?' and options) then
    job[MORE] = with_more(with_more(more, 'x', nil), 's', nil) -- a service
  end
  local ids = live and line_of(key)
  if r and policy ~= '' then
    if policy == 'h' then
      policy, line_max = string.match(options or '', '|([abcqr])(%d*)$')
    end
    local is_alone_there = policy == 'r' or policy == 'c'
    if not is_alone_there and (policy ~= 'q' or #ids >= whole(line_max)) then
      journal_job(journal, 'overlap', key, job, r[ID] .. ' is live')
      send_out(from, 'o ' .. string.match(id, '^(.-)@?[^@]*$'))
      left_out[#left_out + 1] = id
      return
    elseif is_alone_there then
      supersede(key, r, ids, id, policy == 'r')
      ids = {}
    end
  end
  local call_size = more_of(more, 'f')
  if call_size then
    redis.call('HSET', payloads, '\f' .. pair, string.sub(payload, call_size + 1))
    payload = string.sub(payload, 1, call_size)
  end
  flag(job, 'p', #payload > INLINE_BYTES_MAX)
  if not options then
    tally('unknown', 1) -- `recount` cannot know its index
  end
  if live then
    stand_behind(key, r, job, ids, tonumber(delay_ms), payload)
    if lane_had[11] then
      journal_followed(journal, 'accepted', key, job, '')
    end
    return
  end
  job[STATE], job[EPOCH], job[SINCE] = 'W', stamp(), text_of(delay_ms == '0' and at_once or now + tonumber(delay_ms))
  flag(job, 'd', true)
  redis.call('HSET', payloads, key, payload)
  redis.call('HSET', jobs, key, pack(job))
  redis.call('ZADD', due, due_of(job, job[SINCE]), 'k:' .. key)
  tally('dispatched', 1)
  tally('waiting', 1)
  tally('delayed', 1)
  if lane_had[11] then
    journal_followed(journal, 'accepted', key, job, '')
  end
end

local k, has_ends = 10 + (first - 5) / 2, false
for a = first, #ARGV, 2 do
  local index, nonce, word, id = string.match(ARGV[a + 1], END)
  if index then
    local b = read_batch(KEYS[k], id)
    if b and b.nonce == nonce then -- else it is that of before, or forgotten
      end_member(b, tonumber(index), word)
    end
    has_ends = true
  elseif string.find(ARGV[a + 1], OVERLAP) then
    count_overlap(string.match(ARGV[a + 1], OVERLAP))
  else
    accept(ARGV[a + 1], KEYS[k])
  end
  k = k + 1
end
local told = has_ends and close_batches() or ''
if first <= #ARGV then
  redis.call('HSET', payloads, '\v' .. from, ARGV[#ARGV - 1])
end
close_lane()
if #left_out > 0 then
  told = ' 1' .. string.sub(told, 3) .. '\n' .. table.concat(left_out, ' ')
end
return 'OK' .. told
