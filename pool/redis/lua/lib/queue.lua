--[[
queue: the jobs that wait behind the live one of their key.

Needs  lane, record, batch, lapse; keys jobs, payloads, due.
Gives  queued_name(key, id), line_of(key), set_line(key, ids), leave_line(name, id), promote(key): whether one was;
stand_behind(key, live, r, ids, delay_ms, payload): live is nil where the record of the key cannot be read;
supersede(key, live, ids, id, is_to_stop): all in the line end by a sweeper, and so does the live one; whether some do.

They stand in the hashes that all other jobs stand in, under names which no key can be: keys hold no control
characters.  So no script has a key more for them, and the walk over the records comes to them, too.

    jobs      "\t" ID " " KEY   the record of each, in state Q
    payloads  "\t" ID " " KEY   its payload
    payloads  "\n" KEY          the line: ids, first come first, spaces between
    due       k: "\t" ID " " KEY   where it is to end

    --dispatch--> Q --promote: the live one ends, whoever ends it, in the same step--> W, due now
                  |--stop, or its time to start is over (c of advance)--> cancelled
                  +--displaced (dispatch): out of the line, with its stop in the record, due now --c--> cancelled

dispatch and incoming add, dispatch displaces, advance and quarantine promote, advance ends, requeue puts right; each in one step.
A live record with somebody behind it has flag n: where that is not set nobody looks here.
Dying changes nothing: who dispatched and got no answer finds its record when it asks again; what was displaced or
promoted is in `due`, where any sweeper finds it.  A late copy of whatever ended or promoted one names an epoch or an
id that does not stand any more.  The promoted job waits and is not granted, since who ends a job has not declared
where the next one's handler has its queue; the sweeper of whoever ended it comes for it at once.
]]
local LINE_JUNK_MAX = 16 -- ids without a record that one turn passes over

local function queued_name(key, id)
  return '\t' .. id .. ' ' .. key
end

-- What this call has not written yet is written first, so that it is read.
local function line_of(key)
  write_batch()
  local ids = {}
  for id in string.gmatch(redis.call('HGET', payloads, '\n' .. key) or '', '[^ ]+') do
    ids[#ids + 1] = id
  end
  return ids
end

local function set_line(key, ids, first)
  if first > #ids then
    later('HDEL', payloads, '\n' .. key)
  else
    later('HSET', payloads, '\n' .. key, table.concat(ids, ' ', first))
  end
end

-- Behind those of `ids`, who are in line already.
local function stand_behind(key, live, r, ids, delay_ms, payload)
  ids[#ids + 1] = r[ID]
  if live then
    flag(live, 'n', true)
    later('HSET', jobs, key, pack(live))
  end
  r[STATE], r[EPOCH], r[SINCE] = 'Q', stamp(), delay_ms > 0 and text_of(now + delay_ms) or ''
  local name, ends = queued_name(key, r[ID]), begin_by(r)
  if ends then
    flag(r, 'd', true)
    later('ZADD', due, text_of(ends), 'k:' .. name)
  end
  later('HSET', payloads, name, payload)
  later('HSET', jobs, name, pack(r))
  set_line(key, ids, 1)
  tally('dispatched', 1)
  tally('waiting', 1)
  tally('delayed', 1) -- it has begun to wait, see `recount`
end

-- One of those in the line, whose place another one takes: it ends by a sweeper.
local function displace(key, id, by)
  local name = queued_name(key, id)
  local r = parse(redis.call('HGET', jobs, name))
  if r and r[INTENT] == '' then
    r[INTENT] = 'ssuperseded by ' .. by
    flag(r, 'd', true)
    later('HSET', jobs, name, pack(r))
    later('ZADD', due, text_of(at_once), 'k:' .. name)
  end
end

local function supersede(key, live, ids, by, is_to_stop)
  for _, id in ipairs(ids) do
    displace(key, id, by)
  end
  if not is_to_stop or string.sub(live[INTENT], 1, 1) == 's' then
    return #ids > 0
  end
  live[INTENT] = 'sreplaced by ' .. by
  flag(live, 'd', true)
  if live[OWNER] == '' then
    flag(live, 'a', true) -- who takes it before a sweeper comes asks before its handler begins, and is told to stop
  end
  later('ZADD', due, text_of(at_once), 'k:' .. key)
  return true
end

local function leave_line(name, id)
  local key, left = string.sub(name, #id + 3), {}
  for _, each in ipairs(line_of(key)) do
    left[#left + 1] = each ~= id and each or nil
  end
  set_line(key, left, 1)
end

local function promote(key)
  local ids = line_of(key)
  for n = 1, math.min(#ids, LINE_JUNK_MAX) do
    local name = queued_name(key, ids[n])
    local r = parse(redis.call('HGET', jobs, name))
    if r and r[STATE] == 'Q' and r[INTENT] == '' then
      local payload = redis.call('HGET', payloads, name)
      if has(r, 'd') then
        later('ZREM', due, 'k:' .. name)
      end
      later('HDEL', jobs, name)
      later('HDEL', payloads, name)
      had_turn[name] = true -- what this call has read of it is not true any more
      local at = text_of(math.max(at_once, whole(r[SINCE])))
      r[ACCEPTED] = accepted_of(r)
      r[STATE], r[EPOCH], r[SINCE] = 'W', stamp(), at
      flag(r, 'd', true)
      flag(r, 'n', n < #ids)
      if payload then -- else it is parked when it comes due, as every one without
        later('HSET', payloads, key, payload)
      end
      later('HSET', jobs, key, pack(r))
      later('ZADD', due, due_of(r, at), 'k:' .. key)
      set_line(key, ids, n + 1)
      return true
    end
  end
  set_line(key, ids, math.min(#ids, LINE_JUNK_MAX) + 1)
  return false
end
