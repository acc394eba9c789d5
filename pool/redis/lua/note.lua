--[[
note: write into the journal what a node has seen.

KEYS[1] lane     hash    incarnation
KEYS[2] journal  stream  abnormal edges
ARGV[1] generation  str
ARGV[...] items      edge, key, job id, handler, owner, epoch, attempt, detail each

Uses     lane, (journal)
Returns  OK
Errors   POOLDATALOST <lane>
Cost     O(items); 1 command each, 3 a call
Why Lua  the data may be others by now, of which the node has seen nothing.

What was sent again because its answer was lost is noted twice.
]]
redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
for a = 2, #ARGV, 8 do
  journal_add(journal, unpack(ARGV, a, a + 7))
end
return 'OK'
