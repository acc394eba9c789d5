--[[
at: where a replicated map is in its history, as the field `at` of its hash says.

Gives  whole(number); read_place(text): generation, revision, stamp and ends, or nil if that is none of ours.

  <generation> <revision> <stamp> <ends>      ends: when its time is up (ms of the maps' time); 0: never
]]
local function whole(number)
  return string.format('%d', number)
end

local function read_place(text)
  local from, revision, stamp, ends = string.match(text or '', '^(%S+) (%d+) (%x+) (%d+)$')
  if from and #revision <= 16 and #stamp <= 16 and #ends <= 16 then -- beyond 16 digits a double skips numbers
    return from, tonumber(revision), stamp, tonumber(ends)
  end
end
