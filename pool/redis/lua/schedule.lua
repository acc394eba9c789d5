--[[
schedule: change schedules, each if it stands as it was seen, and tell of those that are due.

KEYS[1] lane       hash    counters
KEYS[2] schedules  hash    name -> schedule: a line that its changes go by, and what it is; see core/schedules.py
KEYS[3] scheduled  zset    name -> when somebody is to come (ms of the server's clock); of those that are not paused
KEYS[4] due        zset    s: -> when somebody is to come for the earliest of these; o:LANE
KEYS[5] payloads   hash    messages to lanes, see lib/channel
KEYS[6] jobs       hash    is not touched; see lib/batch
ARGV[1] generation  str
ARGV[2] hold_ms      int   > 0; by then the next one comes for what is due
ARGV[3] page_max     int   how many of those that are due are told of; 0: none
ARGV[4] bytes_max    int   of what they say; one alone may be larger
ARGV[5] skip         int   how many of the earliest to leave out: nothing could be done about them
ARGV[6] expects      str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[7] count        int   how many to change
ARGV[...] items          name, line as it was seen (empty: there was none), its new line (empty: take it away), what it
                         is (empty: as before), when it is due (empty: never), number of messages each; then per
                         message lane, what it says

Uses     lane, expected, record, batch, out, channel
Returns  server's clock (ms; as far as it is believed, or the caller expects it), in how many ms the caller is to come
         for those that are not left out (-1: there are none), statuses, (name, schedule) of due ones
         status: OK | CHANGED (it stands otherwise; nothing was done)
Errors   POOLDATALOST <lane>
Cost     O(items + page); 5 commands an item, 2 a message, 8 a call
Why Lua  a firing puts its schedule's next time on and writes its job's message in one step: else who dies between
         the two fires twice, or never.

    s: is due in the lane --sweep--> told here --a line for each, and its messages--> fired: next time behind now
                                          ^                                     |
                                          +------ CHANGED: somebody else has ---+

A line ends with the token of the call that wrote it: a repeat finds its own, and has been done.  The times in
`scheduled` are the server's own clock: pool time (see lane) less its offset.  So s: is where that stands in pool
time now, and renewals that set the offset have somebody look at once.  Dying after any step leaves s: in `due`.
]]
local DAY_MS = 86400000 -- nobody need believe in a later time: clocks are set
redis.call('HLEN', schedules)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
local statuses, at = {}, 8

local function change(name, seen, head, body, due_ms, text)
  local stands = string.match(text or '', '^[^\n]*')
  if stands ~= seen then
    local is_repeat = head ~= '' and string.match(stands, '%S*$') == string.match(head, '%S*$')
    return is_repeat and 'OK' or 'CHANGED'
  elseif head == '' then
    later('HDEL', schedules, name)
  else
    later('HSET', schedules, name, head .. (body ~= '' and '\n' .. body or string.sub(text, #stands + 1)))
  end
  if due_ms ~= '' then
    later('ZADD', scheduled, due_ms, name)
  else
    later('ZREM', scheduled, name)
  end
  return 'OK', true
end

for n = 1, count do
  local name, messages = ARGV[at], tonumber(ARGV[at + 5])
  local status, is_done = change(name, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], redis.call('HGET', schedules, name))
  at = at + 6
  for a = at, at + 2 * messages - 2, 2 do
    if is_done then
      send_out(ARGV[a], ARGV[a + 1])
    end
  end
  at = at + 2 * messages
  statuses[n] = status
end
write_batch()

local wall, page, size = now - offset, {}, 0
local names = page_max > 0 and redis.call('ZRANGEBYSCORE', scheduled, '-inf', wall, 'LIMIT', skip, page_max) or {}
for _, name in ipairs(names) do
  local text = redis.call('HGET', schedules, name)
  if not text then
    redis.call('ZREM', scheduled, name)
  else
    size = size + #text
    if size > bytes_max and #page > 0 then
      break
    end
    page[#page + 1] = name
    page[#page + 1] = text
  end
end
local function wait_for(rank)
  local at = tonumber(redis.call('ZRANGE', scheduled, rank, rank, 'WITHSCORES')[2])
  return at and math.max(page_max > 0 and at <= wall and hold_ms or 0, math.min(at - wall, DAY_MS)) or -1
end
local wait_ms = wait_for(0)
if wait_ms >= 0 then
  redis.call('ZADD', due, text_of(now + wait_ms), 's:')
else
  redis.call('ZREM', due, 's:')
end
close_lane()
return { text_of(wall), text_of(skip > 0 and wait_for(skip) or wait_ms), statuses, page }
