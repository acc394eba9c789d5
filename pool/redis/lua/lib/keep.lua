--[[
keep: for how long an answer is remembered, in pool time.

Needs  lane; key kept.  Gives  remember(result, id, text, ttl_ms), close_kept().
`expire` ends it.  What only the server's own clock would end would end at once when that clock is set an hour
on.  That clock is left the rest: what nobody forgets, as the pool is there no more, or its `kept` was lost.
]]
local NOBODY_MS = 86400000
local KEPT_MAX = 32 -- job ids of one member
local kept_ids = {} -- how long -> job ids; and `rest`, for how long the server keeps each

local function remember(result, id, text, ttl_ms)
  local ids = kept_ids[ttl_ms]
  if not ids then
    ids = { rest = text_of(tonumber(ttl_ms) + NOBODY_MS) }
    kept_ids[ttl_ms] = ids
  end
  redis.call('SET', result, text, 'PX', ids.rest)
  ids[#ids + 1] = id
end

local function close_kept()
  for ttl_ms, ids in pairs(kept_ids) do
    for i = 1, #ids, KEPT_MAX do
      -- Where it is of another type no answer is lost.
      redis.pcall('ZADD', kept, text_of(now + tonumber(ttl_ms)),
        table.concat(ids, ' ', i, math.min(i + KEPT_MAX - 1, #ids)))
    end
  end
end
