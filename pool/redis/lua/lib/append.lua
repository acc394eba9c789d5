--[[
append: add an event to a stream, and keep its cap and its end in the same step.

Needs  ends; keys events, meta; arguments event, payload, length_max, ttl_ms, flags, topic, mark.
Gives  append(n): the event's id; false: there is no stream, and x was asked, or its time is over; or an error, and
nothing was written.  n is the event's number, if it has one already.

    HINCRBY n --> XADD NOMKSTREAM --> its id             numbers are what readers see holes by
                       | no stream, or refused
                       +--> begins anew, with 1; or n is taken back

That a stream is not there is seen by what adding answers: asking before would cost each event one command more.
A cap is exact, but for one that was lowered: each further event takes TRIM_MAX at most.  What it takes of which a
group was not given yet, is counted for that group.
]]
local function append_as(n)
  local TRIM_MAX = 16

  local function has(flag)
    return string.find(flags, flag, 1, true)
  end

  -- What a cap took of events that nobody had given to a group is its loss, and it is told so.
  local function note_taken(taken)
    local function parts(id)
      local ms, seq = string.match(id, '^(%d+)-(%d+)$')
      return tonumber(ms), tonumber(seq)
    end
    local names, missed, words = {}, {}, { 'trimmed', taken[#taken][1] }
    local last_of, number = taken[#taken][2], 0
    for i = 1, #last_of, 2 do
      number = last_of[i] == 'n' and tonumber(last_of[i + 1]) or number
    end
    for i, entry in ipairs(taken) do
      taken[i] = { parts(entry[1]) }
    end
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
      local name, last
      for i = 1, #info, 2 do
        name = info[i] == 'name' and info[i + 1] or name
        last = info[i] == 'last-delivered-id' and info[i + 1] or last
      end
      local ms, seq = parts(last)
      local count = 0
      for _, id in ipairs(taken) do
        count = count + ((id[1] > ms or (id[1] == ms and id[2] > seq)) and 1 or 0)
      end
      if count > 0 then
        missed[#missed + 1] = count
        names[#names + 1] = 'missed:' .. name
        names[#names + 1] = 'counted:' .. name
      end
    end
    local had = #names > 0 and redis.call('HMGET', meta, unpack(names)) or {}
    for i, count in ipairs(missed) do
      local from, before = string.match(had[2 * i] or '', '^(%d+)|(%d+)$')
      from, before = from or number - count + 1, (tonumber(before) or 0) + count
      words[#words + 1] = names[2 * i - 1]
      words[#words + 1] = string.format('%d', (tonumber(had[2 * i - 1] or '0') or 0) + count)
      words[#words + 1] = names[2 * i]
      words[#words + 1] = string.format('%d|%d', from, before)
    end
    redis.call('HSET', meta, unpack(words))
  end

  local function add_entry(...)
    local words = { ... }
    for _, word in ipairs({ '*', 'n', string.format('%d', n), 'm', mark, 'e', event, 'p', payload }) do
      words[#words + 1] = word
    end
    if has('t') then
      words[#words + 1] = 't'
      words[#words + 1] = topic
    end
    return redis.pcall('XADD', events, unpack(words))
  end

  local function set_end()
    if has('a') then
      if redis.call('PEXPIREAT', events, ttl_ms, 'NX') == 1 then
        redis.call('PEXPIREAT', meta, ttl_ms + GONE_MS)
      end
    elseif has('s') then
      redis.call('PEXPIRE', events, ttl_ms)
      redis.call('PEXPIRE', meta, ttl_ms + GONE_MS)
    elseif redis.call('PEXPIRE', events, ttl_ms, 'NX') == 1 then
      redis.call('PEXPIRE', meta, ttl_ms + GONE_MS)
    end
  end

  local id, taken
  local length = length_max > 0 and redis.pcall('XLEN', events)
  local over = type(length) == 'number' and math.min(length + 1 - length_max, TRIM_MAX) or 0
  if over > 0 then
    taken = redis.call('XRANGE', events, '-', '+', 'COUNT', over)
    id = add_entry('NOMKSTREAM', 'MAXLEN', '=', length + 1 - over)
  else
    id = add_entry('NOMKSTREAM')
  end
  if type(id) ~= 'string' then
    if id or has('x') then
      if n > 1 then
        redis.call('HINCRBY', meta, 'n', -1)
      else
        redis.call('HDEL', meta, 'n')
      end
      return id
    end
    begin(meta)
    redis.call('HSET', meta, 'n', '1')
    n = 1
    id = add_entry()
  end
  if taken then
    note_taken(taken)
  end
  if ttl_ms > 0 then
    set_end()
  end
  return id
end

local function is_over()
  if not string.find(flags, 'a', 1, true) then
    return false
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= ttl_ms
end

local function append(n)
  if ttl_ms > 0 and is_over() then
    return false
  end
  n = n or redis.pcall('HINCRBY', meta, 'n', 1)
  if type(n) == 'table' then
    if not string.find(n.err, '^ERR ') then
      return n
    end
    redis.call('HSET', meta, 'n', '1') -- somebody else wrote there
    n = 1
  end
  return append_as(n)
end
