--[[
batch_open: open a batch, unless there is one of that id; see lib/members.

KEYS[1] lane       hash    counters
KEYS[2] batches    zset    id of each batch -> when it was opened
KEYS[3] batch      hash    batch:ID
KEYS[4] due        zset    b:ID -> when it is sealed at the latest
ARGV[1] generation  str
ARGV[2] id          str
ARGV[3] nonce       str   what tells it from others of that id
ARGV[4] least       str   how many members must succeed; empty: all
ARGV[5] keep_ms     int   > 0; how long it is kept when it has settled
ARGV[6] open_ms     int   > 0; how long after its last members it is sealed in any case
ARGV[7] parent      str   INDEX/LANE/NONCE/ID of the batch whose member it is, or nothing
ARGV[8] followers   bytes of it, packed

Uses     lane
Returns  OK <nonce> (it was opened; a repeat: is open) | THERE <nonce> <state> <members>[ <parent>] |
         MALFORMED (batch:ID is something else)
Errors   POOLDATALOST <lane>
Cost     O(1); 9 commands
Why Lua  two that open the same batch would each take it for theirs; and one that nobody comes for is never sealed.

What it is a member of is said when it is opened, and stands.  Whoever opens it within another one notes it there first, and
that one was there before it: so no batch is within itself, over whichever others.
]]
if not fits(batch, 'hash') then
  return 'MALFORMED'
end
redis.call('ZCARD', batches)
redis.call('ZCARD', due)
local its, state, members = string.match(redis.call('HGET', batch, 'head') or '', '^([^|]+)|(%l)|(%d+)|')
if its then
  local had = redis.call('HGET', batch, 'parent')
  return its == nonce and 'OK ' .. its or 'THERE ' .. its .. ' ' .. state .. ' ' .. members .. (had and ' ' .. had or '')
end
local at = text_of(now)
local head = table.concat({ nonce, 'o', '0', '0', '0', '0', '0', least, at, text_of(now + open_ms), '', text_of(keep_ms),
  text_of(open_ms), '' }, '|')
redis.call('HSET', batch, 'head', head)
if followers ~= '' then
  redis.call('HSET', batch, 'then', followers)
end
if parent ~= '' then
  redis.call('HSET', batch, 'parent', parent)
end
redis.call('ZADD', batches, at, id)
redis.call('ZADD', due, text_of(now + open_ms), 'b:' .. id)
tally('batches', 1)
close_lane()
return 'OK ' .. nonce
