--[[
notify: put a message into a job's inbox and wake its owner.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record
KEYS[3] inbox      list    messages accepted for the key and not yet handled
KEYS[4] signal     stream  signals of the owner
ARGV[1] incarnation   str
ARGV[2] key           str
ARGV[3] owner         str   who must stand as the owner; empty: nobody, the message waits in the inbox
ARGV[4] messages_max  int   > 0
ARGV[5] request       str   id of this request; a repeat is recognised while its message is unhandled
ARGV[6] payload       bytes
ARGV[7] id            str   of the job; empty: whichever the key has; -: of none, it only looks

Uses     lane, record
Returns  OK <message id> | MOVED_ON <owner or -> <job id> | NOJOB | INBOX <messages> | MALFORMED
Errors   POOLDATALOST <lane>
Cost     O(1), a repeat O(messages); 6 commands
Why Lua  id, inbox and order are one step: messages are handled in the order they were accepted.
]]
local INLINE_BYTES_MAX = 1024
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
  for _, message in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    local had, by = string.match(message, '^(%d+)|([^|]*)|')
    if by == request then
      return 'OK ' .. had
    end
  end
end
if messages >= messages_max then
  return 'INBOX ' .. messages
end
local before = messages > 0 and string.match(redis.call('LINDEX', inbox, -1), '^(%d+)|') or '0'
local number = stamp()
redis.call('RPUSH', inbox, number .. '|' .. request .. '|' .. payload)
if not has(r, 'i') then
  flag(r, 'i', true)
  redis.call('HSET', jobs, key, pack(r))
end
if owner ~= '' then
  if #payload <= INLINE_BYTES_MAX then
    redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 't', 'message', 'k', key, 'i', number,
      'b', before, 'p', payload)
  else
    redis.call('XADD', signal, 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 't', 'message', 'k', key, 'i', number,
      'b', before)
  end
end
close_lane()
return 'OK ' .. number
