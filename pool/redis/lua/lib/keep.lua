--[[
keep: for how long an answer is remembered, in pool time.

Needs  lane; key kept.  Gives  remember(result, pair, text, ttl_ms), close_kept(), pair_of(id, key).
A member of `kept` is a line for each: its length, job id, key; the lane counts the lengths in `results`.  `expire`
ends it, if it still has that length: what is remembered of a job may be replaced by something longer.
What only the server's own clock would end would end at once when that clock is set an hour on.  That clock is left
the rest: what nobody forgets, as the pool is there no more, or its `kept` was lost.
]]
local NOBODY_MS = 86400000
local KEPT_MAX = 32 -- pairs of one member
local kept_pairs = {} -- how long -> pairs; and `rest`, for how long the server keeps each

-- An id is its key's, and holds no space; a key holds no line's end.
local function pair_of(id, key)
  return id .. ' ' .. key
end

local function remember(result, pair, text, ttl_ms)
  local pairs_of = kept_pairs[ttl_ms]
  if not pairs_of then
    pairs_of = { rest = text_of(tonumber(ttl_ms) + NOBODY_MS) }
    kept_pairs[ttl_ms] = pairs_of
  end
  redis.call('SET', result, text, 'PX', pairs_of.rest)
  local size = #text
  pairs_of[#pairs_of + 1] = text_of(size) .. ' ' .. pair
  tally('results', size)
end

local function close_kept()
  for ttl_ms, members in pairs(kept_pairs) do
    for i = 1, #members, KEPT_MAX do
      -- Where it is of another type no answer is lost.
      redis.pcall('ZADD', kept, text_of(now + tonumber(ttl_ms)),
        table.concat(members, '\n', i, math.min(i + KEPT_MAX - 1, #members)))
    end
  end
end
