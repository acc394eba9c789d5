--[[
append: add an event to a stream, and keep its cap and its end in the same step.

Needs  limits, ends; keys events, meta; arguments event, payload, mark, topic.
Gives  append(n): the event's id; false: there is no stream, and x was asked, or its time is over; or an error, and
nothing was written.  n is the event's number, if it has one already.

    HINCRBY n --> XADD NOMKSTREAM --> its id             numbers are what readers see holes by
                       | no stream, or refused
                       +--> begins anew, with 1; or n is taken back

That a stream is not there is seen by what adding answers: asking before would cost each event one command more.
A cap is exact, but for one that was lowered: each further event takes TRIM_MAX at most.  What it takes of which a
group was not given yet, is counted for that group.
]]
local TRIM_MAX = 16

-- What a cap took of events that nobody had given to a group is its loss, and it is told so.
local function note_taken(taken)
  local tonumber, match, format = tonumber, string.match, string.format
  local newest, number = taken[#taken], 0
  for i = 1, #newest[2], 2 do
    number = newest[2][i] == 'n' and tonumber(newest[2][i + 1]) or number
  end
  local function parts(id)
    local ms, seq = match(id, '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(seq)
  end
  local behind, missed, names, at = {}, {}, {}, 0 -- behind: a cursor -> how many of them are
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local name, last = info[2], info[8]
    for i = 1, (info[1] == 'name' and info[7] == 'last-delivered-id') and 0 or #info, 2 do
      name = info[i] == 'name' and info[i + 1] or name
      last = info[i] == 'last-delivered-id' and info[i + 1] or last
    end
    local count = behind[last]
    if not count then
      count = 0
      local ms, seq = parts(last)
      for _, entry in ipairs(taken) do
        local own_ms, own_seq = parts(entry[1])
        count = count + ((own_ms > ms or (own_ms == ms and own_seq > seq)) and 1 or 0)
      end
      behind[last] = count
    end
    if count > 0 then
      at = at + 1
      missed[at], names[at] = count, 'missed:' .. name
    end
  end
  local words = { 'trimmed', newest[1] }
  local had = at > 0 and redis.call('HMGET', meta, unpack(names)) or {}
  for i = 1, at do
    local count, all, from, before = missed[i], match(had[i] or '', '^(%d+)|(%d+)|(%d+)$')
    all = all or match(had[i] or '', '^%d+$') or 0
    words[2 * i + 1], words[2 * i + 2] = names[i], format('%d|%d|%d', all + count, from or math.max(0, number - count + 1), (before or 0) + count)
  end
  redis.call('HSET', meta, unpack(words))
end

local function append_as(n)
  local function has(flag)
    return string.find(flags, flag, 1, true)
  end

  local function add_behind(words)
    local at = #words
    words[at + 1], words[at + 2], words[at + 3], words[at + 4], words[at + 5] = '*', 'n', string.format('%d', n), 'm', mark
    words[at + 6], words[at + 7], words[at + 8], words[at + 9] = 'e', event, 'p', payload
    if topic ~= '' then
      words[at + 10], words[at + 11] = 't', string.sub(topic, 2)
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
    id = add_behind({ 'NOMKSTREAM', 'MAXLEN', '=', length + 1 - over })
  else
    id = add_behind({ 'NOMKSTREAM' })
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
    id = add_behind({})
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
