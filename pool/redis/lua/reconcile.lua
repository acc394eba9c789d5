--[[
reconcile: list the next of what a worker owns by name, and read what the records of some keys say, for it to
compare with what it does.

What no record confirms is dropped from `owned` and from the stream; a record that says otherwise is the
walk's.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record
KEYS[3] owned      set     keys it runs
KEYS[4] stream     stream  starts it has not acknowledged
ARGV[1] generation  str
ARGV[2] worker       str   id.n
ARGV[3] at           str   cursor in `owned`, 0 at first; empty: it has been listed
ARGV[4] after        str   entry of the stream behind which to go on, 0 at first; empty: it has been listed
ARGV[5] names_max    int   > 0; how many of each to list, about
ARGV[...] items            key, entry each: what to read; entry: where it stands in the stream, or nothing

Uses     lane, record
Returns  cursor of what comes next in `owned` and entry behind which to go on (empty: that was the end); keys in
         `owned`; entry, key of starts; then of the items, as far as they are the worker's: those that it runs (key,
         record each; also those that nobody can read); those of them that its set lacks; entries of the
         unacknowledged; key, record of those that are pending with it and whose entry is gone or names another job
Errors   POOLDATALOST <lane>
Cost     O(names_max + items); 4 commands an item, 4 a call
Why Lua  record and index at one moment: a key between them would look lost.  And names alone come out of the
         stream, where whole entries would be a payload each.
]]
redis.call('HLEN', jobs)
redis.call('XLEN', stream)
local next_at, names = '', {}
if at ~= '' then
  local found = redis.call('SSCAN', owned, at, 'COUNT', names_max)
  next_at, names = found[1] ~= '0' and found[1] or '', found[2]
end
local next_after, entries = '', {}
if after ~= '' then
  local found = redis.call('XRANGE', stream, after == '0' and '-' or '(' .. after, '+', 'COUNT', names_max)
  for _, entry in ipairs(found) do
    entries[#entries + 1] = entry[1]
    entries[#entries + 1] = entry[2][2] or ''
  end
  next_after = #found >= names_max and found[#found][1] or ''
end

local running, strays, starts, lost, told = {}, {}, {}, {}, {}
local function append(to, key, text)
  to[#to + 1] = key
  to[#to + 1] = text
end
for a = 6, #ARGV, 2 do
  local key, entry = ARGV[a], ARGV[a + 1]
  local text = redis.call('HGET', jobs, key)
  local r = parse(text)
  local is_mine = r and r[OWNER] == worker
  local stands = is_mine and r[STATE] == 'P' and r[EPOCH] .. '-0'
  if told[key] then
    -- A key may stand in the stream twice, and is told once.
  elseif text and not r then
    append(running, key, text)
  elseif is_mine and r[STATE] == 'R' then
    append(redis.call('SISMEMBER', owned, key) == 1 and running or strays, key, text)
  else
    redis.call('SREM', owned, key) -- only an index entry: it would look like a lost job for ever
    if stands then
      local found = redis.call('XRANGE', stream, stands, stands)[1]
      if found and string.match(found[2][4] or '', '^[^|]*') == r[ID] then
        starts[#starts + 1] = found
      else
        append(lost, key, text) -- to be granted anew: a payload that is still there is found by that
      end
    end
  end
  told[key] = true
  if entry ~= '' and entry ~= stands and (r or not text) then
    redis.call('XDEL', stream, entry) -- it would take up room for ever
  end
end
return { next_at, next_after, names, entries, running, strays, starts, lost }
