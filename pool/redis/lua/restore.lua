--[[
restore: put keys back into the indexes where their records say that they stand.

KEYS[1] lane       hash    incarnation
KEYS[2] cleanup    hash    identity -> claim
KEYS[3] jobs       hash    key -> record
KEYS[4] pending    zset    key -> by when its start must be acknowledged
KEYS[5] due        zset    k:KEY -> when
KEYS[6] owned      set     keys the owner runs
ARGV[1] generation  str
ARGV[2] owner        str   id.n, whom these records name; empty: nobody
ARGV[3] pending_ms   int   > 0
ARGV[...] items            key, record as it was seen, limit_ms each; limit_ms: in how long its run-time limit
                           would be over if it began now, 0: it has none

Uses     lane, record, lapse
Returns  per item: the indexes that it was put back into, comma-separated | SOUND | MOVED_ON (it is another
         record by now) | GONE (its owner was reaped; nobody would look there)
Errors   POOLDATALOST <lane>
Cost     O(1) per item; 5 commands each, 8 a call
Why Lua  where a record stands is right only for the record as it is.

An unassigned key is not put back: it is granted (see advance), or becomes unassigned anew.
]]
redis.call('HLEN', jobs)
redis.call('ZCARD', due)
redis.call('SCARD', owned)
local is_gone = redis.call('HGET', cleanup, owner) == 'done'
redis.call('ZREM', pending, '\n')

local function restore(key, text, limit_ms)
  local r = parse(text)
  if not r or r[OWNER] ~= owner or redis.call('HGET', jobs, key) ~= text then
    return 'MOVED_ON'
  elseif is_gone then
    return 'GONE'
  end
  local into = {}
  if r[STATE] == 'P' and redis.call('ZADD', pending, 'NX', now + pending_ms, key) == 1 then
    into[1] = 'pending'
  elseif r[STATE] == 'R' and redis.call('SADD', owned, key) == 1 then
    into[1] = 'owned'
  end
  if (r[STATE] == 'W' or has(r, 'd')) and not redis.call('ZSCORE', due, 'k:' .. key) then
    local at = now
    if r[STATE] == 'W' then
      at = due_of(r, r[SINCE] ~= '' and r[SINCE] or now)
    elseif r[STATE] == 'P' and r[INTENT] == '' then
      at = begin_by(r)
    elseif r[INTENT] == '' then
      -- Counted anew: later than it was, never earlier.  Its owner keeps the time, too.
      at = limit_ms > 0 and now + limit_ms
    end
    if at then
      redis.call('ZADD', due, at, 'k:' .. key)
    else
      flag(r, 'd', false)
      redis.call('HSET', jobs, key, pack(r))
    end
    into[#into + 1] = 'due'
  end
  return #into > 0 and table.concat(into, ',') or 'SOUND'
end

local answers = {}
for a = 4, #ARGV, 3 do
  answers[#answers + 1] = restore(ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2]))
end
return answers
