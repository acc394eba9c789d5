--[[
marks: crash marks of those who have come back from a freeze do not count.

Needs  lane, record; key thawed.  Gives  judged(text, r): the record as it is to be judged.
A mark is evidence that a process died.  Who joins again says who it was before: it did not die.
]]
local function judged(text, r)
  if r[MARKS] == '' then
    return text
  end
  local kept = {}
  for mark in string.gmatch(r[MARKS], '[^,]+') do
    local until_ms = redis.call('ZSCORE', thawed, (string.gsub(mark, '-$', '')))
    if not until_ms or tonumber(until_ms) < now then
      kept[#kept + 1] = mark
    end
  end
  r[MARKS] = table.concat(kept, ',')
  return pack(r)
end
