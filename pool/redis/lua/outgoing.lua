--[[
outgoing: forget what a lane has carried out, and tell of the next messages to it; see lib/channel.

KEYS[1] lane       hash    counters
KEYS[2] due        zset    o:B -> when somebody is to come for the messages to lane B
KEYS[3] payloads   hash    the messages
KEYS[4] journal    stream  abnormal edges
ARGV[1] generation  str
ARGV[2] to          str   lane B
ARGV[3] taken       int   how many of those that the caller was told of B has carried out
ARGV[4] last        str   name of the last of these
ARGV[5] root        str   name of the message before the first, as the caller was told
ARGV[6] anew        str   where B stands, from which to go on instead; empty: they follow what it has
ARGV[7] hold_ms     int   > 0; by then the next one comes for what is left
ARGV[8] items_max   int   > 0; how many are told of
ARGV[9] bytes_max   int   > 0; of what they say; one alone may be larger

Uses     lane, out, (journal)
Returns  name of the message before the first, how many there are, 1 if they go on from `anew` since this call, else 0;
         then name, what it says of each
Errors   POOLDATALOST <lane>
Cost     O(items_max); 1 command each, 8 a call
Why Lua  who writes a message finds o:B in `due`, or puts it there: it may go only in the step that saw none left.

    it stands as it was told      `taken` are forgotten, or `anew` is the name before the first
    it has moved on               somebody else carries, too: nothing is changed
    `anew` is one of the next     likewise, and he has not come back yet to have it forgotten
]]
redis.call('HLEN', payloads)
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass
local out = read_out(to)
local function message_at(n)
  return redis.call('HGET', payloads, out_message(to, n))
end
local function forget(count)
  for n = out.first, out.first + count - 1 do
    redis.call('HDEL', payloads, out_message(to, n))
  end
  out.first = out.first + count
  tally('outgoing', -count)
end
local before = out.first
local is_there = taken > 0 and taken <= out.next - out.first
if is_there and string.sub(message_at(out.first + taken - 1) or '', 1, 16) == last then
  forget(taken)
  out.root = last
end
local answers, size, is_here = { '', '', 0 }, 0, false
for n = out.first, math.min(out.next, out.first + items_max) - 1 do
  local message = message_at(n)
  if not message and n == out.first then
    forget(1) -- somebody else has taken it out
  else
    size = size + #(message or '')
    if not message or (size > bytes_max and n > out.first) then
      break
    end
    local name = string.sub(message, 1, 16)
    is_here = is_here or name == anew
    answers[#answers + 1] = name
    answers[#answers + 1] = string.sub(message, 17)
  end
end
if anew ~= '' and root == out.root and not is_here then
  journal_add(journal, 'channel', '', '', '', '', '', '', to .. ': ' .. root .. ', now ' .. anew)
  out.root, answers[3] = anew, 1
end
answers[1], answers[2] = out.root, text_of(out.next - out.first)
if out.first ~= before or answers[3] == 1 then
  redis.call('HSET', payloads, '\r' .. to, out_head(out))
end
if out.first == out.next then
  redis.call('ZREM', due, 'o:' .. to)
else
  redis.call('ZADD', due, now + hold_ms, 'o:' .. to)
end
close_lane()
return answers
