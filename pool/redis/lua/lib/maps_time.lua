--[[
maps_time: the time by which replicated maps end.  Needs  typed; key maps.

Gives  maps_time(): that time in ms, and the server's clock in ms; nil if foreign data are there.
       foreign(key): the error that says so; the server's own names no key.

It is what the pool's processes have seen pass: each probe notes it, beside the server's clock (see rmap_probe).
In between it goes on by the clock, but for steps of the clock and while nobody was there.
]]
local UNSEEN_MS = 15000 -- probes are at most 10 s apart while anybody is there

local function foreign(key)
  return redis.error_reply('WRONGTYPE ' .. key .. ' holds what is none of ours')
end

local function maps_time()
  local had = typed('HMGET', maps, 'now', 'seen')
  if had.err then
    return nil
  end
  local time = redis.call('TIME')
  local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local now, seen = tonumber(string.match(had[1] or '', '^%d+$')), tonumber(string.match(had[2] or '', '^%d+$'))
  if not now or not seen then
    return clock, clock -- nobody has noted any yet
  end
  local passed = clock - seen
  return now + ((passed < 0 or passed > UNSEEN_MS) and 0 or passed), clock
end
