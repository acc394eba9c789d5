--[[
lane: what every script of a lane begins with.  Needs  keys lane; argument generation.

Gives  now_us, now, at_once (ms), raw_us, whole(text), text_of(number), instant(score), stamp(), tally(name, n),
close_lane(), fits(key, type), paused (false: nothing is, see pause); of pool time: offset, seen, reached, period_ms, is_astray, is_off.
stamp = max(stamp + 1, microseconds of pool time): numbers are unique in the lane and never fall, whatever
the server's clock does, because the last one is kept with the data.

Pool time is TIME and the lane's offset: raw.  It is believed as far as somebody has vouched for it: from
`seen`, the last renewal that did, to two renewal periods later.

      seen         now = raw              seen + 2 periods
  -----|--------------------------------------|-----------> raw
  now stands here                        now stands here

So a step of the server's clock changes nothing that is written or decided by more than two periods,
until renewals have set the offset right (see clock).  After an outage, when raw is right and only nobody
could renew, whose caller says what pool time it expects goes by that (see expected).
]]
local lane_had = redis.call('HMGET', lane, 'incarnation', 'stamp', 'unassigned', 'waiting', 'offset', 'seen',
  'ttl', 'claim', 'paced', 'reached', 'follow', 'paused', 'lease')
if lane_had[1] ~= generation then
  return redis.error_reply('POOLDATALOST ' .. lane)
end
local lane_time = redis.call('TIME')
-- A number of the lane; what somebody else wrote there counts as 0.
local function whole(text)
  return text and #text <= 16 and tonumber(string.match(text, '^%d+$')) or 0
end
-- Above it, near where numbers are not exact any more, is nobody's stamp: no clock says so before 2255.
local STAMP_MAX = 9e15
local offset = lane_had[5] and #lane_had[5] <= 14 and tonumber(string.match(lane_had[5], '^-?%d+$')) or 0
local paused = lane_had[12]
local raw_us = tonumber(lane_time[1]) * 1000000 + tonumber(lane_time[2]) + offset * 1000
-- A TTL that has just fallen paces nobody before a renewal has told somebody.
local seen, paced_ms = whole(lane_had[6]), whole(lane_had[9] or lane_had[7])
if seen > STAMP_MAX / 1000 then
  seen = 0
end
local period_ms = math.floor(math.min(paced_ms >= 1000 and paced_ms / 5 or 2000, 10000))
-- The claim of a node that came to a clock behind `seen`, after a witness of a step had died: raw is wrong, also
-- when it has passed `seen`.
local off_since = lane_had[8] and tonumber(string.match(lane_had[8], '^n|0|[^|]*|%d+|(%d+)|%-?%d+$'))
local is_off = off_since and off_since < seen and raw_us >= off_since * 1000
  and raw_us <= (off_since + 4 * period_ms) * 1000
local now_us = raw_us
if seen > 0 then
  now_us = is_off and seen * 1000 or math.max(seen * 1000, math.min(raw_us, (seen + 2 * period_ms) * 1000))
end
local is_astray = now_us ~= raw_us
local now = math.floor(now_us / 1000)
local at_once = now -- the deadline of what waits for no time: whoever looks next finds it over
local stamp_last = whole(lane_had[2])
if stamp_last > STAMP_MAX then
  stamp_last = 0
end
local stamp_used = false
-- The latest pool time that something was stored by while it stood (see expected).
local reached = math.max(seen, whole(lane_had[10]))
if reached > STAMP_MAX / 1000 then
  reached = seen
end
local tallies = {}

-- Whether commands of this type can be used on a key that belongs to one job or one handler: if not, its
-- own items fail, and not the whole batch.  And whether anything is there.
local function fits(name, kind)
  local found = redis.call('TYPE', name).ok
  return found == kind or found == 'none', found ~= 'none'
end

-- Of whole numbers; %.0f takes five times as long.
local function text_of(number)
  return string.format('%d', number)
end

-- A time as a reply's text, whatever somebody made of its score.
local function instant(score)
  return text_of(math.max(0, math.min(tonumber(score), 1e15)))
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
  local words = stamp_used and { 'stamp', text_of(stamp_last) } or {}
  if stamp_used and reached > seen then
    words[3], words[4] = 'reached', text_of(reached)
  end
  local names = {}
  for name, n in pairs(tallies) do
    names[#names + 1] = n ~= 0 and name or nil
  end
  if #names > 0 then
    -- What somebody else wrote there, or what it counts, must neither end a script half-way nor last.
    for i, had in ipairs(redis.call('HMGET', lane, unpack(names))) do
      words[#words + 1] = names[i]
      words[#words + 1] = text_of(math.max(0, whole(had) + tallies[names[i]]))
    end
  end
  if #words > 0 then
    redis.call('HSET', lane, unpack(words))
  end
end
