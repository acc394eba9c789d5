--[[
sink_regain: have events wait under a consumer's name again, which somebody deleted with all that waited there.

KEYS[1] leases  zset    consumer -> lease end, in the sink's time
KEYS[2] events  stream
ARGV[1] group     bytes  the sink's name
ARGV[2] consumer  str
ARGV[...] items          per event two: its id, and how often it was handed out so far

Uses     group
Returns  how many wait under it again
Errors   POOLGONE <consumer>  it has no lease: others may have what it held
         NOGROUP              there is no such group
Cost     O(items); 1 command, and at most 2 each
Why Lua  an event that waits under any name is that one's.
]]
if not redis.call('ZSCORE', leases, consumer) then
  return redis.error_reply('POOLGONE ' .. consumer)
end
local regained = 0
for i = 3, #ARGV, 2 do
  if #redis.call('XPENDING', events, group, ARGV[i], ARGV[i], 1) == 0 then
    local count = text_of(tonumber(ARGV[i + 1]) * 1000)
    regained = regained + #redis.call('XCLAIM', events, group, consumer, 0, ARGV[i], 'RETRYCOUNT', count, 'FORCE', 'JUSTID')
  end
end
return regained
