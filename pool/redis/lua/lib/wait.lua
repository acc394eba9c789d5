--[[
wait: what may wait for so long only, until it begins; see lapse.

Needs  lane, record, batch, lapse; key due.  Gives  from_now(more), await_worker(key, r).
]]
-- Of one that is accepted: what it may take counts from now on.
local function from_now(more)
  local rest = string.gsub(',' .. more, '(,[sx]%d+)/%d+', '%1')
  rest = string.gsub(rest, ',x(%d+)', function(ms)
    return ',x' .. ms .. '/' .. text_of(now + whole(ms))
  end)
  return string.sub(rest, 2)
end

-- Of one that goes to a worker next, or is left unassigned.
local function await_worker(key, r)
  local ms = more_of(r[MORE], 's')
  if ms and not string.find(ms, '/', 1, true) then
    r[MORE] = with_more(r[MORE], 's', ms .. '/' .. text_of(now + whole(ms)))
  end
  local by = begin_by(r)
  if by then
    flag(r, 'a', true)
    flag(r, 'd', true)
    later('ZADD', due, text_of(by), 'k:' .. key)
  end
end
