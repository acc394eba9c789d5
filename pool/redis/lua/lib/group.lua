--[[
group: the consumers of one stream's group, and how often an event was handed out.  Needs  argument group.

Gives  RELEASED, DOUBTFUL, text_of(number), has_group(events): the id that it was given last,
       pending_of(events, name, count), handed(deliveries), put(events, meta, id, name, deliveries),
       forget(events, name), is_trimmed(meta, id), number_of(counted), note(meta, what, count), note_gone(meta, id),
       next_id(id), number_at(events, from, to): of the first event there, 0 if there is none, or it has none.

RELEASED and DOUBTFUL are consumers that nobody is.  What waits under RELEASED belongs to whoever has room;
what waits under DOUBTFUL was, or may have been, in the hands of a program that ended: a consumer takes one
of those at a time, and says that it hands it out before it does.

Redis counts what it gives to a consumer, which is not yet in a program's hands.  So its count holds two:
thousands are times that the event was handed out, and what is below them says that it was given since.
]]
local RELEASED, DOUBTFUL = '-', '?'

local function text_of(number)
  return string.format('%.0f', number)
end

local function handed(deliveries)
  return math.floor(tonumber(deliveries) / 1000)
end

local function has_group(events)
  if redis.call('EXISTS', events) == 0 then
    return false
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    local is_ours, last = false, '0-0'
    for i = 1, #info, 2 do
      is_ours = is_ours or (info[i] == 'name' and info[i + 1] == group)
      last = info[i] == 'last-delivered-id' and info[i + 1] or last
    end
    if is_ours then
      return last
    end
  end
  return false
end

local function pending_of(events, name, count)
  return redis.call('XPENDING', events, group, '-', '+', count, name)
end

-- The one place where a consumer is deleted: whatever it held would go with it, unseen.
local function forget(events, name)
  if #pending_of(events, name, 1) > 0 then
    return 0
  end
  redis.call('XGROUP', 'DELCONSUMER', events, group, name)
  return 1
end

-- Whether a length cap took it.
local function is_trimmed(meta, id)
  local function parts(text)
    local ms, seq = string.match(text or '0-0', '^(%d+)-(%d+)$')
    return tonumber(ms) or 0, tonumber(seq) or 0
  end
  local ms, seq = parts(id)
  local trimmed_ms, trimmed_seq = parts(redis.call('HGET', meta, 'trimmed') or nil)
  return ms < trimmed_ms or (ms == trimmed_ms and seq <= trimmed_seq)
end

local function next_id(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms .. '-' .. text_of(tonumber(seq) + 1)
end

-- How many; of whatever stands there.
local function number_of(counted)
  local number = string.match(counted or '', '^%d+')
  return number and #number <= 16 and tonumber(number) or 0
end

-- What is to be told is counted until somebody says that he told it (see sink_mend).
local function note(meta, what, count)
  local had = redis.call('HGET', meta, what .. ':' .. group) or ''
  local rest = string.match(had, '^%d+(|%d+|%d+)$') or '' -- of what is missed
  redis.call('HSET', meta, what .. ':' .. group, text_of(number_of(had) + count) .. rest)
end

local function number_at(events, from, to)
  local entry = redis.call('XRANGE', events, from, to or from, 'COUNT', 1)[1]
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'n' then
      return #entry[2][i + 1] <= 15 and tonumber(string.match(entry[2][i + 1], '^%d+$')) or 0
    end
  end
  return 0
end

-- A pending event that is no more in its stream: removed by hand is as it should be, taken by a length
-- cap is a loss, which cleaners tell.
local function note_gone(meta, id)
  if is_trimmed(meta, id) then
    note(meta, 'missed', 1)
  end
end

-- Have a pending event wait under a name, with a count; false if it is gone.
local function put(events, meta, id, name, deliveries)
  if #redis.call('XCLAIM', events, group, name, 0, id, 'RETRYCOUNT', text_of(deliveries), 'JUSTID') > 0 then
    return true
  end
  note_gone(meta, id)
  return false
end
