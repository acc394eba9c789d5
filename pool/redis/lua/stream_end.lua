--[[
stream_end: delete a stream, as was asked for.

KEYS[1] events   stream
KEYS[2] meta     hash    stays for some minutes, for who asks why the stream is not there
KEYS[3] once     hash
KEYS[4] ends_of  zset

Uses     ends
Returns  1, or 0: there was none
Cost     O(1), what is deleted is freed aside; 3 commands
Why Lua  nobody sees it gone before it can be seen why.
]]
redis.call('PEXPIRE', meta, GONE_MS)
redis.call('UNLINK', once, ends_of)
return redis.call('UNLINK', events)
