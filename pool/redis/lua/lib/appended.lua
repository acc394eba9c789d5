--[[
appended: how far the items of a replicated map's lists have come.

Gives  newest_item(lists): the highest revision of an item that is there; 0: there is none.

For a map whose place was lost: O(items).
]]
local function newest_item(lists)
  local newest = 0
  for _, item in ipairs(redis.call('ZRANGEBYLEX', lists, '[l', '(m')) do
    local digits, behind = string.match(item, '^l(%d+):()')
    if digits and #digits <= 4 then
      local first = behind + tonumber(digits)
      newest = math.max(newest, tonumber(string.match(string.sub(item, first, first + 15), '^%d+$')) or 0)
    end
  end
  return newest
end
