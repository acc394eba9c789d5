--[[
lane: what every script of a lane begins with.  Needs  keys lane; argument incarnation.

Gives  now_us, now (ms), text_of(number), stamp(), tally(name, n), close_lane().
stamp = max(stamp + 1, server microseconds): numbers are unique in the lane and never fall, even when
the server's clock does, because the last one is kept with the data.
]]
local lane_had = redis.call('HMGET', lane, 'incarnation', 'stamp', 'unassigned', 'waiting')
if lane_had[1] ~= incarnation then
  return redis.error_reply('POOLDATALOST ' .. lane)
end
local lane_time = redis.call('TIME')
local now_us = tonumber(lane_time[1]) * 1000000 + tonumber(lane_time[2])
local now = math.floor(now_us / 1000)
local stamp_last = tonumber(lane_had[2] or '0')
local stamp_used = false
local tallies = {}

local function text_of(number)
  return string.format('%.0f', number)
end

local function stamp()
  stamp_last = math.max(stamp_last + 1, now_us)
  stamp_used = true
  return text_of(stamp_last)
end

local function tally(name, n)
  tallies[name] = (tallies[name] or 0) + n
end

local function close_lane()
  if stamp_used then
    redis.call('HSET', lane, 'stamp', text_of(stamp_last))
  end
  for name, n in pairs(tallies) do
    if n ~= 0 then
      redis.call('HINCRBY', lane, name, n)
    end
  end
end
