--[[
intend: write what shall become of a job into its record, and tell its owner; or only tell it again.

KEYS[1] lane       hash    counters
KEYS[2] jobs       hash    key -> record
KEYS[3] pending    zset    key -> by when its start must be acknowledged
KEYS[4] due        zset    k:KEY -> when
KEYS[5] journal    stream  abnormal edges
KEYS[6] signal     stream  signals of the owner
ARGV[1] generation  str
ARGV[2] key          str
ARGV[3] id           str   job id; empty: whichever job the key has
ARGV[4] owner        str   who must stand as the owner; empty: nobody
ARGV[5] epoch        str   of the run it is meant for; empty: whichever there is
ARGV[6] intent       str   s<cause> | t | empty: only signal
ARGV[7] again_ms     int   when the sweeper shall look after it again

Uses     lane, record, (journal), (follow)
Returns  OK <job id> <state> <epoch> | MOVED_ON <owner or -> <job id> <epoch> <handler> | QUEUED <job id> <epoch> <handler>
         (it waits behind another one: whoever asks ends it by `advance`) | NOJOB | MALFORMED
Errors   POOLDATALOST <lane>
Cost     O(log n); 6 commands
Why Lua  the intent must be in the record before anybody may grant it again.

The first stop stands; it also takes the place of a time-out, which might run the job again.  A stop is meant
for the job, a time-out for one run of it: a late copy must not end the next one.
]]
local text = redis.call('HGET', jobs, key)
local r = parse(text)
if text and not r then
  return 'MALFORMED'
end
if not r or (id ~= '' and r[ID] ~= id) then
  local queued = id ~= '' and parse(redis.call('HGET', jobs, '\t' .. id .. ' ' .. key)) -- see lib/queue.lua
  return queued and table.concat({ 'QUEUED', id, queued[EPOCH], queued[HANDLER] }, ' ') or 'NOJOB'
end
if owner == '' or r[OWNER] ~= owner or (epoch ~= '' and r[EPOCH] ~= epoch) then
  return table.concat({ 'MOVED_ON', r[OWNER] ~= '' and r[OWNER] or '-', r[ID], r[EPOCH], r[HANDLER] }, ' ')
end
redis.call('ZCARD', due)
redis.call('XLEN', signal)
redis.call('ZREM', pending, '\n')
intent = plain(intent)
if intent ~= '' and intent ~= r[INTENT] and string.sub(r[INTENT], 1, 1) ~= 's' then
  r[INTENT] = intent
  journal_job(journal, intent == 't' and 'timed_out' or 'stop', key, r, string.sub(intent, 2))
end
if r[STATE] == 'P' then
  -- What is still to come stands: told again and again, it would never be taken back from a loop that hangs.
  local by = redis.call('ZSCORE', pending, key)
  if not by or tonumber(by) <= now or tonumber(by) > now + again_ms then
    redis.call('ZADD', pending, now + again_ms, key)
  end
end
if r[INTENT] ~= '' then
  flag(r, 'd', true)
  redis.call('ZADD', due, now + again_ms, 'k:' .. key)
end
redis.call('HSET', jobs, key, pack(r))
redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 't', 'intent', 'k', key, 'e', r[EPOCH],
  'd', r[INTENT])
return table.concat({ 'OK', r[ID], r[STATE], r[EPOCH] }, ' ')
