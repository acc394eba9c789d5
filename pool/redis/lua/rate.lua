--[[
rate: add what a node has counted of its jobs to the minute under way; a minute that is over becomes an entry.

KEYS[1] lane   hash    counters
KEYS[2] rates  hash    the minute under way: at -> its number, by pool time; `WHAT HANDLER` -> how many
KEYS[3] rated  stream  the minutes that are over, one entry each: at MINUTE, of TEXT
ARGV[1] generation   str
ARGV[2] minutes_max  int  entries kept
ARGV[3] bytes_max    int  of a TEXT
ARGV[4] fields_max   int  of a minute; what is counted of further handlers counts as of `~`
ARGV[...] counts     str  WHAT HANDLER and how many, in turn

Uses     lane
Returns  1, or 0: something else stands in the place of one of the keys, and nothing was written
Errors   POOLDATALOST <lane>
Cost     O(counts); once a minute O(F log F) for F fields of the minute before, at most fields_max
Why Lua  that a minute is over, its entry, and the first count of the next are one step: of any number of nodes one
         closes it, and no count is in two minutes or in none.

TEXT is a line for each handler: HANDLER WHAT=N,WHAT=N; those with most to tell first, and what does not fit within
bytes_max together as `~`.  A late call counts in the minute in which it comes.
]]
if not (fits(rates, 'hash') and fits(rated, 'stream')) then
  return 0
end
local minute = text_of(math.floor(now / 60000))
local at = redis.call('HGET', rates, 'at')

-- late closing
local function add(of, what, n)
  of.total = of.total + n
  of[what] = (of[what] or 0) + n
end

-- As much as there is room for: a number that is cut would be another one.
local function line_of(handler, of, room)
  local words, told, size = {}, {}, #handler
  for what, n in pairs(of) do
    if what ~= 'total' then
      words[#words + 1] = what .. '=' .. text_of(n)
    end
  end
  table.sort(words)
  for _, word in ipairs(words) do
    size = size + #word + 1
    if size <= room then
      told[#told + 1] = word
    end
  end
  return handler .. ' ' .. table.concat(told, ',')
end

local function text_of_minute()
  local flat, by, names = redis.call('HGETALL', rates), {}, {}
  for i = 1, #flat, 2 do
    local what, handler = string.match(flat[i], '^(%S+) (%S+)$')
    local n = whole(flat[i + 1])
    if handler and n > 0 then
      if not by[handler] then
        by[handler] = { total = 0 }
        names[#names + 1] = handler
      end
      add(by[handler], what, n)
    end
  end
  -- By name where they tell as much, or which is kept would be chance.
  table.sort(names, function(a, b)
    if by[a].total ~= by[b].total then
      return by[a].total > by[b].total
    end
    return a < b
  end)
  local lines, size, rest = {}, 0, { total = 0 }
  for _, handler in ipairs(names) do
    local line = line_of(handler, by[handler], 2 * bytes_max)
    if handler ~= '~' and size + #line + 1 <= bytes_max / 2 + bytes_max / 4 then
      lines[#lines + 1] = line
      size = size + #line + 1
    else
      for what, n in pairs(by[handler]) do
        if what ~= 'total' then
          add(rest, string.sub(what, 1, 2) == 'f.' and 'f.~' or what, n)
        end
      end
    end
  end
  if rest.total > 0 then
    lines[#lines + 1] = line_of('~', rest, bytes_max - size)
  end
  return table.concat(lines, '\n')
end
-- end closing

if at and at ~= minute then
  redis.call('XADD', rated, 'MAXLEN', minutes_max, '*', 'at', at, 'of', text_of_minute())
  redis.call('DEL', rates)
end
if #ARGV > 4 then
  redis.call('HSET', rates, 'at', minute)
end
local room = fields_max - redis.call('HLEN', rates)
for i = 5, #ARGV - 1, 2 do
  local field = ARGV[i]
  local had = redis.call('HGET', rates, field)
  if not had and room <= 0 then
    local what = string.match(field, '^%S+') or '~'
    field = (string.sub(what, 1, 2) == 'f.' and 'f.~' or what) .. ' ~'
    had = redis.call('HGET', rates, field)
  elseif not had then
    room = room - 1
  end
  redis.call('HSET', rates, field, text_of(whole(had) + whole(ARGV[i + 1])))
end
return 1
