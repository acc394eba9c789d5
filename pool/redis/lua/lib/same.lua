--[[
same: whether an event is the one that a consumer was given.

Gives  named(item): id, mark of "id mark", or of an id alone; is_same(events, id, mark): false if another event has this id.
       mark: what the consumer's event was added with; empty: it was given after the last loss that there can have been.
A server that lost data may give ids anew.  Marks are drawn for each event, so they tell two of equal id apart.
]]
local function named(item)
  return string.match(item, '^(%S*) ?(.*)$')
end

local function is_same(events, id, mark)
  local entry = mark ~= '' and redis.call('XRANGE', events, id, id)[1]
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'm' then
      return entry[2][i + 1] == mark
    end
  end
  return true
end
