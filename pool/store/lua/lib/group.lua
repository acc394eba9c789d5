--[[
group: the consumers of one stream's group.  Needs  argument group.

Gives  RELEASED, has_group(events), pending_of(events, name, count), forget(events, name).

RELEASED is a consumer that nobody is: what waits there belongs to whoever has room.  The number of
deliveries there is how often the event was in a program's hands; taking it adds one.
]]
local RELEASED = '-'

local function has_group(events)
  if redis.call('EXISTS', events) == 0 then
    return false
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', events)) do
    for i = 1, #info, 2 do
      if info[i] == 'name' and info[i + 1] == group then
        return true
      end
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
