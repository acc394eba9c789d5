--[[
follow: note an edge of a job; one of an ordinary job only if somebody has asked for those of its key or its handler.

Needs  lane, record, journal.
Gives  journal_job(stream, edge, key, r, detail); journal_followed(stream, edge, key, r, began_ms): how long before now
it began, as text, or nothing.

Who asks writes it into the lane, see `follow`: field `follow`, which stands in lane_had[11], is until when (ms), a
line feed, and then k or h, a key or the name of a handler, and a line feed each.  It is over by itself.
]]
local function journal_job(stream, edge, key, r, detail)
  journal_add(stream, edge, key, r[ID], r[HANDLER], r[OWNER], r[EPOCH], r[ATTEMPT], detail)
end

local function journal_followed(stream, edge, key, r, began_ms)
  local ends, names = string.match(lane_had[11] or '', '^(%d+)(\n.*)$')
  if not ends or whole(ends) <= now then
    return
  elseif string.find(names, '\nk' .. key .. '\n', 1, true) or string.find(names, '\nh' .. r[HANDLER] .. '\n', 1, true) then
    local detail = string.format('accepted %.0f ms ago', math.max(0, now - math.floor(whole(accepted_of(r)) / 1000)))
    journal_job(stream, edge, key, r, began_ms ~= '' and detail .. ', began ' .. began_ms .. ' ms ago' or detail)
  end
end
