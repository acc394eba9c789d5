--[[
sink_hand: note that events were handed out to a program, or are about to be.

KEYS[1] events  stream
KEYS[2] meta    hash    trimmed
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[...] items          per event two: how lib/same names it, and how often it was handed out, this time included

Uses     group, same
Returns  per event 1, or 0: it is not the caller's any more, or another event has its id
Errors   NOGROUP    there is no such group
         WRONGTYPE  foreign data under one of the keys
Cost     O(items); at most 4 commands each
Why Lua  an event that somebody took over meanwhile must not be taken from them.

Doing it again changes nothing: the number is said, not added; one that was noted before never falls.
]]
redis.call('HLEN', meta)
local answer = {}
for i = 3, #ARGV, 2 do
  local id, mark = named(ARGV[i])
  local mine = redis.call('XPENDING', events, group, id, id, 1, consumer)[1]
  mine = mine and is_same(events, id, mark) and mine
  if mine and not is_trimmed(meta, id) then -- else Redis would forget that it is pending, untold
    local times = math.max(handed(mine[4]), tonumber(ARGV[i + 1]))
    redis.call('XCLAIM', events, group, consumer, 0, id, 'RETRYCOUNT', text_of(times * 1000), 'JUSTID')
  end
  answer[#answer + 1] = mine and 1 or 0
end
return answer
