--[[
recount: end a pass of the walk: note what it found, and set counters right that were wrong.

KEYS[1] lane           hash    counters, astray
KEYS[...] unassigned           unassigned:H of every handler that is registered or stands in a record
ARGV[1] generation  str
ARGV[2] changes      str   what `walk` said when the pass began
ARGV[3] found        int   records found astray in it
ARGV[4] counted      int   how many keys wait, as the pass counted them; -1: it did not

Uses     lane
Returns  unassigned, waiting, as they were; the same, as they are
Errors   POOLDATALOST <lane>
Cost     O(handlers); 3 commands a handler, 5 a call
Why Lua  a count is right for the moment at which it is taken, and must be written in that moment.

`unassigned` is the size of its indexes; a handler that nobody had registered may have come since the pass
began, then it is left as it is.  Keys that wait have no index of their own.  The pass has counted them one
slice after the other: that holds if none began to wait meanwhile (each of which counts as retried or
delayed) and their number is the same, so that none ceased.
]]
local fields = redis.call('HMGET', lane, 'retried', 'delayed', 'unknown')
local had = { whole(lane_had[3]), whole(lane_had[4]) }
local is = { had[1], had[2] }
local before, unknown = string.match(changes, '^(%d+|%d+|%d+)|(%d+)$')
if before == table.concat({ had[2], whole(fields[1]), whole(fields[2]) }, '|') and counted >= 0 then
  is[2] = counted
end
if tonumber(unknown) == whole(fields[3]) then
  is[1] = 0
  for k = 2, #KEYS do
    if fits(KEYS[k], 'zset') then
      is[1] = is[1] + redis.call('ZCARD', KEYS[k])
    end
  end
end
redis.call('HDEL', lane, '\n')
redis.call('HSET', lane, 'astray', found, 'unassigned', text_of(is[1]), 'waiting', text_of(is[2]))
return { had[1], had[2], is[1], is[2] }
