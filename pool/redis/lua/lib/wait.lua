--[[
wait: what may wait for so long only, until it begins; see lapse.

Needs  lane, record, batch, lapse; key due.  Gives  from_now(more), take_more(r, more, options), await_worker(key, r).
]]
-- Of a handler's options the two that say when its jobs must begin; it does not match where nothing stands there, nor
-- behind that.
local OPTIONS = '^j|%d*|%d*|%d*|%d*|%d*|%d*|%d*|%d*|(%d*)|?(%d*)'

-- Of one that is accepted: what it may take counts from now on.
local function from_now(more)
  local rest = string.gsub(',' .. more, '(,[sx]%d+)/%d+', '%1')
  rest = string.gsub(rest, ',x(%d+)', function(ms)
    return ',x' .. ms .. '/' .. text_of(now + whole(ms))
  end)
  return string.sub(rest, 2)
end

-- What its caller says of a job and, where that does not know its handler, what those options say of when it must
-- begin; false: services are not told.
local function take_more(r, more, options)
  local limits = { string.match(options or '', OPTIONS) }
  for n, ms in ipairs(limits) do
    local letter = n == 1 and 'x' or 's'
    if ms ~= '' and not more_of(more, letter) then
      more = with_more(more, letter, ms)
    end
  end
  if r[KIND] == 's' and (more_of(more, 'x') or more_of(more, 's')) then
    return false
  end
  r[MORE] = more ~= '' and from_now(more) or ''
  return true
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
