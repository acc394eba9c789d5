--[[
journal: note what does not happen to an ordinary job; the words stand in core/journal.py.

Gives  journal_add(stream, edge, key, id, handler, owner, epoch, attempt, detail), which returns its id, or an error.

All have the same fields in the same order, so that an entry takes what they hold and hardly more.  The stream keeps
the latest 10,000 (and what is left of a node of it, 100), of at most 1,200 bytes each.  It keeps nobody from anything:
where another value stands in its place, or the server is full, nothing is noted.
]]
local ENTRIES_MAX, DETAIL_MAX = 10000, 200

local function journal_add(stream, edge, key, id, handler, owner, epoch, attempt, detail)
  return redis.pcall('XADD', stream, 'MAXLEN', '~', ENTRIES_MAX, '*', 'edge', edge, 'key', key, 'id', id, 'handler', handler,
    'owner', owner, 'epoch', epoch, 'attempt', attempt, 'detail', string.sub(detail, 1, DETAIL_MAX))
end
