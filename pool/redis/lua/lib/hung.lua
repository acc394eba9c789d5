--[[
hung: whether an identity's event loop hangs, as its last renewal said.  Needs  key open.  Gives  is_hung(name).
]]
local function is_hung(name)
  local id, n = string.match(name, '^(.*)%.(%d+)$')
  local says = id and redis.pcall('HGET', open, id)
  return type(says) == 'string' and string.match(says, '^(%d+)|%-|') == n
end
