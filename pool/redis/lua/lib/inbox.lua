--[[
inbox: where a message stands among those of a job.  Needs  lane.

Gives  upto(inbox, message): how many entries there are up to this message, 0 if it is not there.

A message is number|request|payload; it is named by number|request, or by its number alone.  The numbers in one list rise.
But whoever names a message may have read it before the server lost data.  Then another message may have that number or a
lower one, and must not be taken for handled: so a name counts only if exactly this message is there.
]]
local function upto(inbox, message)
  local function is_it(entry)
    return string.sub(entry, 1, #message + 1) == message .. '|'
  end
  if message == '' then
    return 0
  end
  local entry = redis.call('LINDEX', inbox, 0)
  local wanted = whole(string.match(message, '^%d+'))
  if entry and is_it(entry) then
    return 1
  elseif not entry or whole(string.match(entry, '^(%d+)|')) > wanted then
    return 0
  end
  -- The first entry with a higher number is one of these; what somebody else wrote counts as 0.
  local first, behind = 0, redis.call('LLEN', inbox)
  while first < behind do
    local middle = math.floor((first + behind) / 2)
    if whole(string.match(redis.call('LINDEX', inbox, middle), '^(%d+)|')) <= wanted then
      first = middle + 1
    else
      behind = middle
    end
  end
  while first > 0 do
    entry = redis.call('LINDEX', inbox, first - 1)
    if is_it(entry) then
      return first
    elseif string.find(entry, '^%d+|') then
      return 0
    end
    first = first - 1
  end
  return 0
end
