--[[
signal: tell a node that a job it waits for has started or ended, where the server is full.

KEYS[1] lane    hash    incarnation
KEYS[2] signal  stream  signals of the node
ARGV[1] generation  str
ARGV[...] fields       of the entry: name, value each

Uses     lane
Returns  OK
Errors   POOLDATALOST <lane>
Cost     O(1); 5 commands
Why Lua  a full server refuses a plain XADD; of a script's commands it refuses only the first that writes.
]]
redis.call('XLEN', signal)
redis.call('HDEL', lane, '\n')
redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', unpack(ARGV, 2))
return 'OK'
