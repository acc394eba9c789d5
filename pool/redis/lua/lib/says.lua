--[[
says: what a worker says beside something else: how many keys it takes here, as its slots are shared by all lanes.

Needs  lane; key open; argument says (takes|seq, or nothing; - where there is no news).  Gives  heed(name).
Nothing is said by one that is closed, or whose loop hangs; and a later renewal has the last word, as ever.
]]
local function heed(name)
  local takes, seq = string.match(says, '^(%d+)|(%d+)$')
  if not takes then
    return
  end
  local id, n = string.match(name, '^(.*)%.(%d+)$')
  local had_n, had_seq = string.match(redis.call('HGET', open, id) or '', '^(%d+)|%d+|(%d+)$')
  if had_n == n and whole(had_seq) <= tonumber(seq) then
    redis.call('HSET', open, id, n .. '|' .. takes .. '|' .. had_seq)
  end
end
