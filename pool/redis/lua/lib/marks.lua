--[[
marks: the last death in a job's crash marks does not count if its process came back from a freeze.

Needs  lane, record; key deaths.  Gives  judged(text, r): the record as it is to be judged.
Marks are evidence that a process died, and a process that joins again says that it did not.  See core/crash_marks.py for the text.
]]
local function judged(text, r)
  if r[MARKS] == '' then
    return text
  end
  local count, sums, death, rest = string.match(r[MARKS], '^(%d+)(%.[^,]*,)(%w+%.%d+)%.[^,]*(,.*)$')
  if death and not redis.call('ZSCORE', deaths, death) then
    count = math.max(0, whole(count) - 1)
    r[MARKS] = count > 0 and text_of(count) .. sums .. '.0.1.0.' .. rest or ''
  end
  return pack(r)
end
