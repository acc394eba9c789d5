--[[
rmap_probe: where in their histories several replicated maps are.

KEYS[1] config  hash  the pool's incarnation
KEYS[...] metas       per map: its meta hash
ARGV[1] incarnation  str  the pool's, as the caller knows it

Returns  [revision, stamp, revision, stamp ...] in the order of the maps; '0' and '0' for a map never
         written, two nils for one whose meta is not a hash: one broken map hides no other
Errors   POOLDATALOST <config>  the pool's incarnation is another one, or gone
Cost     O(maps); 1 command, and 1 per map; writes nothing
Why Lua  one answer for all maps a node follows, of one moment and of one incarnation.
]]
if redis.call('HGET', config, 'incarnation') ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. config)
end
local answer = {}
for i = 2, #KEYS do
  local last = redis.pcall('HMGET', KEYS[i], 'revision', 'stamp')
  local is_readable = not last.err
  answer[2 * i - 3] = is_readable and (last[1] or '0')
  answer[2 * i - 2] = is_readable and (last[2] or '0')
end
return answer
