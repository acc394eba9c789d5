--[[
append: add an event to a stream, and keep its cap and its end in the same step.

Needs  keys events, meta; arguments event, payload, length_max, ttl_ms, flags, topic; ends (the part).
Gives  append(): the event's id; false: there is no stream, and x was asked, or its time is over; or an error,
and nothing was written.

    HINCRBY n --> XADD NOMKSTREAM --> its id             numbers are what readers see holes by
                       | no stream, or refused
                       +--> begins anew, with 1; or n is taken back

That a stream is not there is seen by what adding answers: asking before would cost each event one command more.
A cap is exact, but for one that was lowered: each further event takes TRIM_MAX at most.  What it takes of which a
group was not given yet, is counted for that group.
]]
local TRIM_MAX = 16

local function add_entry(n, ...)
  local words = { ... }
  for _, word in ipairs({ '*', 'n', string.format('%.0f', n), 'e', event, 'p', payload }) do
    words[#words + 1] = word
  end
  if string.find(flags, 't', 1, true) then
    words[#words + 1] = 't'
    words[#words + 1] = topic
  end
  return redis.pcall('XADD', events, unpack(words))
end

local function parts(text)
  local ms, seq = string.match(text, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function is_behind(one, other)
  local ms, seq = parts(one)
  local other_ms, other_seq = parts(other)
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end

-- What a cap took of events that nobody had given to a group is its loss, and it is told so.
local function note_taken(taken)
  local names, missed, words = {}, {}, { 'trimmed', taken[#taken][1] }
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local facts, count = {}, 0
    for i = 1, #info, 2 do
      facts[info[i]] = info[i + 1]
    end
    for _, entry in ipairs(taken) do
      count = count + (is_behind(entry[1], facts['last-delivered-id']) and 1 or 0)
    end
    if count > 0 then
      names[#names + 1], missed[#missed + 1] = 'missed:' .. facts['name'], count
    end
  end
  local had = #names > 0 and redis.call('HMGET', meta, unpack(names)) or {}
  for i, name in ipairs(names) do
    words[#words + 1] = name
    words[#words + 1] = string.format('%.0f', (tonumber(had[i] or '0') or 0) + missed[i])
  end
  redis.call('HSET', meta, unpack(words))
end

-- The next event's number.  What somebody else wrote there counts as nothing.
local function next_number()
  local n = redis.pcall('HINCRBY', meta, 'n', 1)
  if type(n) == 'table' and string.find(n.err, '^ERR ') then
    redis.call('HSET', meta, 'n', '1')
    n = 1
  end
  return n
end

local function take_back(n)
  if n > 1 then
    redis.call('HINCRBY', meta, 'n', -1)
  else
    redis.call('HDEL', meta, 'n')
  end
end

local function set_end()
  if string.find(flags, 'a', 1, true) then
    if redis.call('PEXPIREAT', events, ttl_ms, 'NX') == 1 then
      redis.call('PEXPIREAT', meta, ttl_ms + GONE_MS)
    end
  elseif string.find(flags, 's', 1, true) then
    redis.call('PEXPIRE', events, ttl_ms)
    redis.call('PEXPIRE', meta, ttl_ms + GONE_MS)
  elseif redis.call('PEXPIRE', events, ttl_ms, 'NX') == 1 then
    redis.call('PEXPIRE', meta, ttl_ms + GONE_MS)
  end
end

-- Whether the time at which it was to end is there.
local function is_over()
  if not string.find(flags, 'a', 1, true) then
    return false
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= ttl_ms
end

local function append()
  if is_over() then
    return false
  end
  local n, taken = next_number(), nil
  if type(n) == 'table' then
    return n
  end
  local words = { 'NOMKSTREAM' }
  if length_max > 0 and n > length_max then
    local length = redis.pcall('XLEN', events)
    local over = type(length) == 'number' and math.min(length + 1 - length_max, TRIM_MAX) or 0
    if over > 0 then
      taken = redis.call('XRANGE', events, '-', '+', 'COUNT', over)
      words = { 'NOMKSTREAM', 'MAXLEN', '=', length + 1 - over }
    end
  end
  local id = add_entry(n, unpack(words))
  if type(id) ~= 'string' then
    if id or string.find(flags, 'x', 1, true) then
      take_back(n)
      return id
    end
    begin(meta)
    redis.call('HSET', meta, 'n', '1')
    id = add_entry(1)
  end
  if taken then
    note_taken(taken)
  end
  if ttl_ms > 0 then
    set_end()
  end
  return id
end
