--[[
pause: have the lane grant nothing of its jobs, of a handler's or of a key's any more, or grant it again.

KEYS[1] lane       hash    incarnation, paused, paused_at: the highest order of a pause here|that of a resume
KEYS[2] jobs       hash    key -> record
KEYS[3] journal    stream  abnormal edges
KEYS[4] unassigned zset    unassigned:H of the handler that the key's job is said to have
ARGV[1] generation  str
ARGV[2] verb        str    pause | resume
ARGV[3] what        str    pool | handler | key
ARGV[4] name        str    of the handler, or the key; - for the pool
ARGV[5] handler     str    of the key's job, as its caller has read it; - where it knows none
ARGV[6] paused_max   int   > 0; of handlers, or of keys
ARGV[7] order        int   the number of this decision: of two about the same the higher one counts

Uses     lane, (typed), record, pause, (journal)
Returns  OK (again: it stood so) | FULL (as many are paused) | MOVED_ON <handler> (its unassigned keys were not passed)
         | BEHIND <order> (of the latest here that decided otherwise, about the same or not: nothing was changed)
Errors   POOLDATALOST <lane>
Cost     O(handlers paused + log n); 11 commands
Why Lua  what is said to whoever grants, and where the key's job stands in line, change in one step.

    granted --pause--> held: unassigned, whatever its job was to be --resume--> granted, by whoever pulls next

Doing it again changes nothing.  What was granted before goes on.  A lane knows the highest order of all, not one for
each that was ever paused: who is behind without need, since it was about something else, takes a higher number.
]]
local ORDER_MAX = 1e15 -- above it is nobody's
local function order_of(text)
  local had = whole(text)
  return had < ORDER_MAX and had or 0
end
local all, keys, names = string.match(paused or '|', '^(p?)(%d*)|(.*)$')
if not all or string.find('|' .. names, '||', 1, true) or string.find(names, '[^|]$') then
  all, keys, names = '', '', '' -- of another hand
end
local is_pause = verb == 'pause'
redis.call('HLEN', jobs)
local before = all .. keys .. '|' .. names
local r = what == 'key' and not is_pause and parse(redis.call('HGET', jobs, name))
if r and r[STATE] == 'U' and r[HANDLER] ~= handler then
  return 'MOVED_ON ' .. r[HANDLER]
end
local field = PAUSED .. name
local stands = all == 'p'
if what == 'handler' then
  stands = string.find('|' .. names, '|' .. name .. '|', 1, true)
elseif what == 'key' then
  stands = redis.call('HEXISTS', lane, field) == 1
end
local at_pause, at_resume = string.match(redis.call('HGET', lane, 'paused_at') or '', '^(%d+)|(%d+)$')
at_pause, at_resume = order_of(at_pause), order_of(at_resume)
if is_pause and not stands and order <= at_resume then
  return 'BEHIND ' .. text_of(at_resume)
elseif stands and not is_pause and order <= at_pause then
  return 'BEHIND ' .. text_of(at_pause)
end
redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
if what == 'pool' then
  all = is_pause and 'p' or ''
elseif what == 'handler' then
  local _, count = string.gsub(names, '|', '')
  if is_pause and not stands then
    if count >= paused_max then
      return 'FULL'
    end
    names = names .. name .. '|'
  elseif stands and not is_pause then
    names = string.sub(names, 1, stands - 1) .. string.sub(names, stands + #name + 1)
  end
else
  local count = whole(keys)
  if is_pause and not stands then
    if count >= paused_max then
      return 'FULL'
    end
    redis.call('HSET', lane, field, '1')
    count = count + 1
  elseif stands and not is_pause then
    redis.call('HDEL', lane, field)
    count = count - 1
  end
  keys = count > 0 and text_of(count) or ''
  local score = r and r[STATE] == 'U' and typed('ZSCORE', unassigned, name) -- of another type it holds nobody
  score = type(score) == 'string' and tonumber(score)
  if score and score >= HELD then
    redis.call('ZADD', unassigned, text_of(score - HELD), name)
    before = '' -- it is told of in any case
  end
end
if is_pause then
  at_pause = math.max(at_pause, order)
else
  at_resume = math.max(at_resume, order)
end
redis.call('HSET', lane, 'paused_at', text_of(at_pause) .. '|' .. text_of(at_resume))
local after = all .. keys .. '|' .. names
if after == before then
  return 'OK'
elseif after == '|' then
  redis.call('HDEL', lane, 'paused')
else
  redis.call('HSET', lane, 'paused', after)
end
journal_add(journal, is_pause and 'paused' or 'resumed', what == 'key' and name or '', '', what == 'handler' and name or '', '', '', '', what)
return 'OK'
