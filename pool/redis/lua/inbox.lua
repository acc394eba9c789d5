--[[
inbox: read the next messages of a job, the oldest first.

KEYS[1] lane   hash  incarnation
KEYS[2] inbox  list  messages accepted for the key and not yet handled
ARGV[1] generation   str
ARGV[2] after         str   a message's number|request, or its number: if it is there, those up to it are left out
ARGV[3] messages_max  int   > 0
ARGV[4] bytes_max     int   > 0; one message alone may be larger

Uses     lane, inbox
Returns  1 if there may be more, else 0; then the messages
Errors   POOLDATALOST <lane>
Cost     O(messages returned); 1 command each, 3 a call, and O(log messages) where more than one is left out
Why Lua  how many messages are how many bytes is known here alone; and places in the list shift while it is
         read, so that between two commands one would be passed over.

Those left out were handled, and are being taken out.  If `after` is not there, it was taken out with all before it,
or the server lost it: what is there is all to be read.  Of entries that no script wrote at most 1000 are passed over.
]]
local LEFT_OUT_MAX = 1000
local answers, at, left_out, bytes = { 0 }, upto(inbox, after), 0, 0
while true do
  local message = redis.call('LINDEX', inbox, at)
  if not message then
    return answers
  end
  bytes = bytes + #message
  if #answers > messages_max or left_out >= LEFT_OUT_MAX or (bytes > bytes_max and #answers > 1) then
    answers[1] = 1
    return answers
  end
  if whole(string.match(message, '^(%d+)|')) > 0 then
    answers[#answers + 1] = message
  else
    left_out = left_out + 1
  end
  at = at + 1
end
