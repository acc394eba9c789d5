--[[
sink_take: take released events.

KEYS[1] leases  zset    consumer -> lease end
KEYS[2] events  stream
KEYS[3] meta    hash    missed:GROUP, trimmed
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[3] count     int    at most so many

Uses     group
Returns  per event two: how often it has been delivered, this time included, and [id, fields]
Errors   POOLGONE <consumer>  it has no lease
         NOGROUP              there is no such group
Cost     O(count); 3 commands, and 1 an event
Why Lua  only who has a lease may hold something, and what two want at once goes to one of them.
]]
if not redis.call('ZSCORE', leases, consumer) then
  return redis.error_reply('POOLGONE ' .. consumer)
end
redis.call('HLEN', meta)
local answer = {}
for _, each in ipairs(pending_of(events, RELEASED, count)) do
  local entry = redis.call('XCLAIM', events, group, consumer, 0, each[1])[1]
  if entry then
    answer[#answer + 1] = tonumber(each[4]) + 1
    answer[#answer + 1] = entry
  else
    note_gone(meta, each[1])
  end
end
return answer
