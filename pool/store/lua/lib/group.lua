--[[
group: the consumers of one stream's group.  Needs  argument group.

Gives  RELEASED, has_group(events): the id that it was given last, pending_of(events, name, count),
       forget(events, name), note_gone(meta, id).

RELEASED is a consumer that nobody is: what waits there belongs to whoever has room.  The number of
deliveries there is how often the event was in a program's hands; taking it adds one.
]]
local RELEASED = '-'

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

-- A pending event that is no more in its stream: removed by hand is as it should be, taken by a length
-- cap is a loss, which the next cleaner tells.
local function note_gone(meta, id)
  local function parts(text)
    local ms, seq = string.match(text or '0-0', '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(seq)
  end
  local ms, seq = parts(id)
  local trimmed_ms, trimmed_seq = parts(redis.call('HGET', meta, 'trimmed') or nil)
  if ms < trimmed_ms or (ms == trimmed_ms and seq <= trimmed_seq) then
    redis.call('HINCRBY', meta, 'missed:' .. group, 1)
  end
end
