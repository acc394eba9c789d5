--[[
typed: a command on a key that may hold another type.

Gives  typed(...): the command's reply, or a table with `err` if the key holds another type (WRONGTYPE).

Any other error is raised, as redis.call() raises it: NOREPLICAS, MISCONF, READONLY, OOM or a missing right say
nothing about the data, and a script that took them for foreign data told operators to delete healthy keys.
After a script's first write only a missing right can raise here.
]]
local function typed(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and not string.find(reply.err, '^WRONGTYPE') then
    return redis.call(...) -- raises it
  end
  return reply
end
