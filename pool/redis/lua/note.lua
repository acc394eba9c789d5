--[[
note: write into the journal what a node has seen.

KEYS[1] lane     hash    incarnation
KEYS[2] journal  stream  abnormal edges
ARGV[1] generation  str
ARGV[2] after       str   they were sent before, behind this entry; empty: they were not
ARGV[...] items      edge, key, job id, handler, owner, epoch, attempt, detail each

Uses     lane, (journal)
Returns  the id of the last entry, or 0-0 where none could be written
Errors   POOLDATALOST <lane>
Cost     O(items); 1 command each, 3 a call; 1 more, and up to 1,000 entries to read, if they were sent before
Why Lua  the data may be others by now, of which the node has seen nothing.

What is sent again because its answer was lost stands once: its sender has sent nothing else meanwhile, so an entry
behind the last one that it was told of, and equal to the first of these, says that all of them stand.
]]
local BEHIND_MAX = 1000 -- of others; what is farther away is not seen
local FIELDS = { 'edge', 'key', 'id', 'handler', 'owner', 'epoch', 'attempt', 'detail' }

local function is_first(entry)
  for i, name in ipairs(FIELDS) do
    local told = i == #FIELDS and string.sub(ARGV[2 + i], 1, DETAIL_MAX) or ARGV[2 + i]
    if entry[2 * i - 1] ~= name or entry[2 * i] ~= told then
      return false
    end
  end
  return true
end

redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
local after = ARGV[2]
local behind = after ~= '' and redis.pcall('XREVRANGE', journal, '+', '(' .. after, 'COUNT', BEHIND_MAX) or {}
for _, entry in ipairs(behind) do
  if is_first(entry[2]) then
    return behind[1][1]
  end
end
local last
for a = 3, #ARGV, 8 do
  last = journal_add(journal, unpack(ARGV, a, a + 7))
end
return type(last) == 'string' and last or '0-0'
