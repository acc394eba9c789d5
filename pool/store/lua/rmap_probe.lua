--[[
rmap_probe: where in their histories several replicated maps are, and which maps' time is up.

KEYS[1] config  hash  the pool's incarnation
KEYS[2] due     zset  map -> when its time is up (server ms)
KEYS[...] maps        per map: its meta hash, its items hash
ARGV[1] incarnation  str  the pool's, as the caller knows it

Returns  [names, revision, stamp, strings, revision ...]: at most 16 names of maps of the pool whose time is
         up; then the maps asked for, in order: '0' and '0' for a map never written, two nils for one whose
         meta cannot be read: one broken map hides no other; and how many strings it holds, -1: cannot be read
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
Cost     O(maps); 3 commands, and 2 per map; writes nothing
Why Lua  one answer for all maps a node follows, of one moment and of one incarnation.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ended = redis.pcall('ZRANGEBYSCORE', due, '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, 16)
local answer = { ended.err and {} or ended }
for i = 3, #KEYS, 2 do
  local last = redis.pcall('HMGET', KEYS[i], 'revision', 'stamp')
  local at = last.err and '' or (last[1] or '0') .. '-' .. (last[2] or '0')
  local revision, stamp = string.match(at, '^(%d+)-(%d+)$')
  local is_readable = revision and math.max(#revision, #stamp) <= 16
  local strings = redis.pcall('HLEN', KEYS[i + 1])
  local at_answer = (i - 3) / 2 * 3 + 1
  answer[at_answer + 1] = is_readable and revision or false
  answer[at_answer + 2] = is_readable and stamp or false
  answer[at_answer + 3] = type(strings) == 'number' and strings or -1
end
return answer
