--[[
at: where a replicated map is in its history, as the field `at` of its hash says.

Gives  place_of(text): a table, or nil if that is none of ours; text_of_place(place), whole(number).

  <incarnation> <revision> <stamp> <appended> <ends> <cut> <half> <bytes>

appended  number of the latest list item; 0: none
ends      when its time is up (ms of the maps' time); 0: never
cut, half, bytes   the log was cut before revision cut; its second half begins at revision half and has so many bytes
]]
local function whole(number)
  return string.format('%.0f', number)
end

local function place_of(text)
  local found, revision, stamp, appended, ends, cut, half, bytes =
    string.match(text or '', '^(%S+) (%d+) (%x+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  -- Beyond 16 digits a double skips numbers.
  if not found or #stamp > 16 or math.max(#revision, #appended, #ends, #cut, #half, #bytes) > 16 then
    return nil
  end
  return {
    incarnation = found,
    revision = tonumber(revision),
    stamp = stamp,
    appended = tonumber(appended),
    ends = tonumber(ends),
    cut = tonumber(cut),
    half = tonumber(half),
    bytes = tonumber(bytes),
  }
end

local function text_of_place(place)
  return string.format('%s %.0f %s %.0f %.0f %.0f %.0f %.0f', place.incarnation, place.revision, place.stamp,
    place.appended, place.ends, place.cut, place.half, place.bytes)
end
