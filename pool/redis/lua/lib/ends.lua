--[[
ends: the lives of a stream, and whether one has ended as somebody had asked for.

Gives  GONE_MS, has_ended(meta): whether a stream that is not there had; begin(meta): it is made anew, so that its
events are counted from 1, under another number (born); and whether its last life had ended so stands there (planned).

Meta outlives its stream by GONE_MS where the stream's end was asked for, by a time to live or by who destroyed
it: from when meta is to end it can be seen when the stream was to.  The server's clock may have stepped since,
and then a loss is told where none was, or the other way round, as for who comes later still; nothing else depends on it.
]]
local GONE_MS = 600000

local function has_ended(meta)
  local ends = redis.call('PEXPIRETIME', meta)
  local time = ends > 0 and redis.call('TIME')
  return time and ends - GONE_MS <= tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function begin(meta)
  local planned, time = has_ended(meta) and '1' or '', redis.call('TIME')
  redis.call('DEL', meta)
  redis.call('HSET', meta, 'born', time[1] .. '.' .. time[2], 'planned', planned)
end
