--[[
inbox: read the next messages of a job, the oldest first.

KEYS[1] lane   hash  incarnation
KEYS[2] inbox  list  messages accepted for the key and not yet handled
ARGV[1] generation   str
ARGV[2] after         int   id of a message: those up to it are left out
ARGV[3] messages_max  int   > 0
ARGV[4] bytes_max     int   > 0; one message alone may be larger

Uses     lane
Returns  1 if there may be more, else 0; then the messages
Errors   POOLDATALOST <lane>
Cost     O(messages): those returned, and at most 1000 that are left out; 1 command each, 2 a call
Why Lua  how many messages are how many bytes is known here alone; and places in the list shift while it is
         read, so that between two commands one would be passed over.

Those left out were handled, and are being taken out: where there are too many of them nothing is returned.
]]
local LEFT_OUT_MAX = 1000
local answers, at, left_out, bytes = { 0 }, 0, 0, 0
while true do
  local message = redis.call('LINDEX', inbox, at)
  if not message then
    return answers
  end
  bytes = bytes + #message
  if #answers > messages_max or left_out >= LEFT_OUT_MAX or (bytes > bytes_max and at > 0) then
    answers[1] = 1
    return answers
  end
  -- What is no message of ours is left out, too.
  local number = string.match(message, '^(%d+)|')
  if whole(number) > after then
    answers[#answers + 1] = message
  else
    left_out = left_out + 1
  end
  at = at + 1
end
