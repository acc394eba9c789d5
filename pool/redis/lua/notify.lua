--[[
notify: put a message into a job's inbox and wake its owner.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record
KEYS[3] inbox      list    messages accepted for the key and not yet handled
KEYS[4] signal     stream  signals of the owner
ARGV[1] generation   str
ARGV[2] key           str
ARGV[3] owner         str   who must stand as the owner; empty: nobody, the message waits in the inbox
ARGV[4] messages_max  int   > 0
ARGV[5] request       str   id of this request; behind a !: a repeat, whose message is looked for among the unhandled
ARGV[6] payload       bytes
ARGV[7] id            str   of the job; empty: whichever the key has; -: of none, it only looks
ARGV[8] skip          int   of a repeat: how many of the newest messages have been looked at
ARGV[9] looked_max    int   > 0; how many it may look at in one call
ARGV[10] since        int   of a repeat: a stamp from before its first try
ARGV[11] expects      str   pool time that the caller expects; 0: it knows none; see lib/expected

Uses     lane, expected, record
Returns  OK <message id> | MOVED_ON <owner or -> <job id> | NOJOB | INBOX <messages> | MALFORMED
         | LOOKED <skip> (nothing was done: there are more to be looked at, and those it need not see again)
Errors   POOLDATALOST <lane>
Cost     O(1), of a repeat O(looked_max); 6 commands
Why Lua  id, inbox and order are one step: messages are handled in the order they were accepted.
]]
local LOOKED_BYTES_MAX, PIECE_MAX = 1024 * 1024, 64
local text = redis.call('HGET', jobs, key)
local r = parse(text)
if text and not r then
  return 'MALFORMED'
elseif not r then
  return 'NOJOB'
elseif r[OWNER] ~= owner or (id ~= '' and r[ID] ~= id) then
  return 'MOVED_ON ' .. (r[OWNER] ~= '' and r[OWNER] or '-') .. ' ' .. r[ID]
end
local messages = redis.call('LLEN', inbox)
redis.call('XLEN', signal)
if string.sub(request, 1, 1) == '!' then
  request = string.sub(request, 2)
  -- From the newest on.  What comes meanwhile pushes those before it on, so none of them is passed over; a copy
  -- of the first try that comes now is as one that comes later, which nobody could see.
  local at, piece, bytes, is_older = skip, 1, 0, false
  while at < messages and not is_older do
    if at >= skip + looked_max or bytes > LOOKED_BYTES_MAX then
      return 'LOOKED ' .. at
    end
    -- Not one by one: the way to each is as long as the list. Nor many at once before it is known how large they are.
    piece = math.min(2 * piece, PIECE_MAX, skip + looked_max - at)
    local some = redis.call('LRANGE', inbox, -at - piece, -at - 1)
    for i = #some, 1, -1 do
      local had, by = string.match(some[i], '^(%d+)|([^|]*)|')
      if had and by == request then
        return 'OK ' .. had
      end
      is_older = is_older or had and whole(had) < since
      bytes = bytes + #some[i]
    end
    at = at + piece
  end
end
if messages >= messages_max then
  return 'INBOX ' .. messages
end
local before = messages > 0 and string.match(redis.call('LINDEX', inbox, -1), '^(%d+)|') or '0'
local number = stamp()
local message = number .. '|' .. request -- after a loss of data another message may get the same number
redis.call('RPUSH', inbox, message .. '|' .. payload)
if not has(r, 'i') then
  flag(r, 'i', true)
  redis.call('HSET', jobs, key, pack(r))
end
if owner ~= '' then
  if #payload <= INLINE_BYTES_MAX then
    redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 't', 'message', 'k', key, 'i', message,
      'b', before, 'p', payload)
  else
    redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 't', 'message', 'k', key, 'i', message,
      'b', before)
  end
end
close_lane()
return 'OK ' .. number
