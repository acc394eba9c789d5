--[[
lapse: jobs that must have begun by some time, or never do.

Needs  lane, record.  Gives  begin_by(r), due_of(r, at).

    x<ms>       in `more`: for so long after it was accepted it may begin; x<ms>/<by> until it has for the first time
    s<ms>       so long it may wait for a worker; s<ms>/<by> while it does

    accepted                                   x has its end
    given to a worker, or unassigned           s has its end, too; it has flag a, and stands in `due`
    acknowledged                               neither has any more
    to wait for its delay, turn or retry       s has none; in `due` it stands by the end of x at the latest

Too late is what these say by pool time, and nothing else.  Flag a has its worker ask before its handler begins: what
comes too late then is refused, and stays as it is.  So what was not acknowledged never began, and whoever sweeps
takes it, also from a worker that lives, and is full or stands still.  Dying after any step leaves it in `due`; a
late copy of a call names an epoch or a job that does not stand any more.
]]
-- By when it must have begun, or nil.
local function begin_by(r)
  local first
  if r[MORE] ~= '' then
    for by in string.gmatch(',' .. r[MORE], ',[sx]%d+/(%d+)') do
      first = math.min(first or whole(by), whole(by))
    end
  end
  return first
end

-- When somebody has to come for one that waits until then.
local function due_of(r, at)
  return text_of(math.min(tonumber(at), begin_by(r) or tonumber(at)))
end
