--[[
reconcile: read everything a worker owns, for it to compare with what it does.

What no record confirms is dropped from `owned` and from the stream; a record that says otherwise is the
walk's.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record
KEYS[3] owned      set     keys it runs
KEYS[4] stream     stream  starts it has not acknowledged
ARGV[1] incarnation  str
ARGV[2] worker       str   id.n
ARGV[...] asked      str   keys whose start it was told is overdue

Uses     lane, record
Returns  keys it runs with their records (key, record, ...); its unacknowledged entries;
         those asked for that are pending with it (key, record, ...), and those whose entry names another job
Errors   POOLDATALOST <lane>
Cost     O(keys it owns); one command each
Why Lua  both structures at one moment: a key between them would look lost.
]]
redis.call('HLEN', jobs)
redis.call('XLEN', stream)
local running = {}
for _, key in ipairs(redis.call('SMEMBERS', owned)) do
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  if text and (not r or (r[STATE] == 'R' and r[OWNER] == worker)) then
    running[#running + 1] = key
    running[#running + 1] = text
  else
    redis.call('SREM', owned, key) -- only an index entry: it would look like a lost job for ever
  end
end
local starts, lost = {}, {}
for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
  local key = entry[2][2] or ''
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  if not text or (r and (r[STATE] ~= 'P' or r[OWNER] ~= worker or r[EPOCH] .. '-0' ~= entry[1])) then
    redis.call('XDEL', stream, entry[1]) -- it would take up room for ever
  elseif r and string.match(entry[2][4] or '', '^[^|]*') ~= r[ID] then
    lost[#lost + 1] = key -- to be granted anew: a payload that is still there is found by that
    lost[#lost + 1] = text
  else
    starts[#starts + 1] = entry
  end
end
for i = 3, #ARGV do
  local text = redis.call('HGET', jobs, ARGV[i])
  local r = parse(text)
  if r and r[STATE] == 'P' and r[OWNER] == worker then
    lost[#lost + 1] = ARGV[i]
    lost[#lost + 1] = text
  end
end
return { running, starts, lost }
