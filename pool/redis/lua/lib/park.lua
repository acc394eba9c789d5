--[[
park: give an event up.  Needs  group; argument group.

Gives  park(events, meta, parked, stream, id, deliveries, reason): whether it was there; it is acknowledged.
]]
local FIELDS_MAX = 1000 -- of an event that somebody else has added: a call takes no more than some thousand

local function park(events, meta, parked, stream, id, deliveries, reason)
  local entry = redis.call('XRANGE', events, id, id)[1]
  if not entry then
    note_gone(meta, id)
  else
    local fields, kept = entry[2], {}
    for i = 1, #fields > 2 * FIELDS_MAX and #fields or 0, 2 do
      if string.find('nmept', fields[i], 1, true) and #fields[i] == 1 then
        kept[#kept + 1] = fields[i]
        kept[#kept + 1] = fields[i + 1]
      end
    end
    fields = #fields > 2 * FIELDS_MAX and kept or fields
    redis.call('XADD', parked, '*', 's', stream, 'i', id, 'd', text_of(handed(deliveries)), 'r', reason, unpack(fields))
    note(meta, 'parks', 1)
  end
  redis.call('XACK', events, group, id)
  return entry and true or false
end
