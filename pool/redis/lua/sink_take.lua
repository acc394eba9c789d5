--[[
sink_take: take released events, and a doubtful one.

KEYS[1] leases  zset    consumer -> lease end, in the sink's time
KEYS[2] events  stream
KEYS[3] meta    hash    missed:GROUP, trimmed
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[3] count     int    at most so many
ARGV[4] doubtful  int    1: one of them may be a doubtful one

Uses     group
Returns  how many doubtful events were given to it, how many released ones; then per event that is still
         there, a doubtful one first, two: how often it was handed out so far, below 0 if it is doubtful: one
         less than that with the sign turned; and [id, fields]
Errors   POOLGONE <consumer>  it has no lease
         NOGROUP              there is no such group
Cost     O(count); 4 commands, and 1 an event
Why Lua  only who has a lease may hold something, and what two want at once goes to one of them.
]]
if not redis.call('ZSCORE', leases, consumer) then
  return redis.error_reply('POOLGONE ' .. consumer)
end
redis.call('HLEN', meta)
local answer = { 0, 0 }
local function take(name, most)
  local given = pending_of(events, name, most)
  for _, each in ipairs(given) do
    local entry = redis.call('XCLAIM', events, group, consumer, 0, each[1])[1]
    if entry then
      local times = handed(each[4])
      answer[#answer + 1] = name == DOUBTFUL and -1 - times or times
      answer[#answer + 1] = entry
    else
      note_gone(meta, each[1])
    end
  end
  return #given
end
answer[1] = doubtful > 0 and take(DOUBTFUL, 1) or 0
if count > answer[1] then
  answer[2] = take(RELEASED, count - answer[1])
end
return answer
