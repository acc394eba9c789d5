--[[
ttl: change the TTL that a lane goes by.

KEYS[1] lane     hash    incarnation, ttl, term
KEYS[2] journal  stream  abnormal edges
ARGV[1] generation  str
ARGV[2] wanted_ms    int   1,000 to 3,600,000

Uses     lane, (journal)
Returns  the TTL before (ms; 0: none), the number of the change; doing it again changes nothing
Errors   POOLDATALOST <lane>
Cost     O(1); 6 commands
Why Lua  the TTL and its number change in one step, or a renewal in between would consent to what it
         does not know.

It counts at once: whoever renews next is granted it, and told; see `renew` for whose lease gets shorter.
]]
local ttl_had = redis.call('HMGET', lane, 'ttl', 'term')
local before, term = whole(ttl_had[1]), whole(ttl_had[2])
if before ~= wanted_ms then
  term = math.max(term + 1, now)
  redis.call('HSET', lane, 'ttl', text_of(wanted_ms), 'term', text_of(term))
  journal_add(journal, 'ttl', '', '', '', '', '', '', text_of(before) .. ' ms, now ' .. text_of(wanted_ms) .. ' ms')
end
return { before, term }
