--[[
follow: have the journal take all edges of some keys and handlers for a while, or of none any more.

KEYS[1] lane  hash  follow: until when, and what; see lib/follow
ARGV[1] generation  str
ARGV[2] for_ms       int   0: no longer
ARGV[3] names        str   k or h, a key or the name of a handler, and a line feed each; empty: what stands there is told

Uses     lane
Returns  how many ms are left, and the names; 0 and nothing: none are followed
Errors   POOLDATALOST <lane>
Cost     O(names); 4 commands
Why Lua  until when is pool time.
]]
if for_ms == 0 and names ~= '' then
  redis.call('HDEL', lane, 'follow')
  return { 0, '' }
elseif names ~= '' then
  redis.call('HSET', lane, 'follow', text_of(now + for_ms) .. '\n' .. names)
  return { for_ms, names }
end
local ends, had = string.match(lane_had[11] or '', '^(%d+)\n(.*)$')
local left = ends and whole(ends) - now or 0
return left > 0 and { left, had } or { 0, '' }
