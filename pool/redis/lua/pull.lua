--[[
pull: give a worker with free slots the oldest unassigned keys of the handlers it knows.

KEYS[1] lane       hash    stamp, counters
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    id -> number|takes|seq[|down]
KEYS[5] jobs       hash    key -> record
KEYS[6] pending    zset    key -> by when its start must be acknowledged
KEYS[7] payloads   hash    key -> payload
KEYS[8] stream     stream  the worker's starts
KEYS[9] owned      set     keys the worker runs
KEYS[...] unassigned       one per handler the worker knows: key -> acceptance stamp
ARGV[1] generation  str
ARGV[2] pending_ms   int   > 0
ARGV[3] keys_max     int   how many at most, 1 to 1000
ARGV[4] ahead        int   how many it will begin at once beyond the slots that are free
ARGV[5] says         str   takes|seq, or nothing; - where there is no news: see lib/says.lua
ARGV[6] target_count int   1: the worker itself
ARGV[7] id           str   worker id
ARGV[8] number       str   its own in this lane

Uses     lane, typed, record, batch, (pause), place, says
Returns  number of unassigned keys left, number of keys granted; to who says anything, too: acceptance stamp of the
         oldest that it saw and left (0: none); what is paused is left, and is not told of as the oldest
Errors   POOLDATALOST <lane>, POOLGONE <identity>
Cost     O(handlers + granted * log n); 1 command a key, 17 a call, 2 a handler; 1 a key more while keys are paused
Why Lua  two workers would otherwise both take the oldest key.
]]
local name = id .. '.' .. number
if redis.call('HEXISTS', cleanup, name) == 1 or not redis.call('ZSCORE', keepalive, name) then
  return redis.error_reply('POOLGONE ' .. name)
end
redis.call('HLEN', jobs)
redis.call('HLEN', payloads)
redis.call('ZREM', pending, '\n') -- a write: a full server checks memory at the first one only
heed(name)
read_targets(6, 8)
local target = targets[1]
local wanted = target.is_open and math.min(keys_max, target.room + ahead) or 0
-- The oldest of all handlers.  Each list is read a piece at a time: with many handlers few are taken of each.
local PIECE_MIN = 16
local lists, heap = {}, {} -- heap: lists of which something is left, the one with the oldest head first
local piece = math.ceil(wanted / math.max(1, #KEYS - 9))
local function read(list)
  local words = typed('ZRANGE', list.name, list.taken, list.taken + piece - 1, 'WITHSCORES')
  list.words, list.at = words.err and {} or words, 1 -- of another type: nothing of it is granted
end
local function head_of(list)
  return tonumber(list.words[list.at + 1])
end
local function settle(i)
  local list = heap[i]
  local head, child = head_of(list), 2 * i
  while child <= #heap do
    if child < #heap and head_of(heap[child + 1]) < head_of(heap[child]) then
      child = child + 1
    end
    if head_of(heap[child]) >= head then
      break
    end
    heap[i], i, child = heap[child], child, 2 * child
  end
  heap[i] = list
end
for i = 10, wanted > 0 and #KEYS or 0 do
  local list = { name = KEYS[i], taken = 0 }
  local is_paused = paused and pause_of('', string.match(KEYS[i], ':unassigned:(.*)$'))
  if not is_paused then
    read(list)
  end
  if not is_paused and head_of(list) then
    lists[#lists + 1], heap[#heap + 1] = list, list
  end
end
for i = math.floor(#heap / 2), 1, -1 do
  settle(i)
end
piece = math.max(piece, PIECE_MIN)
local keys, aside = {}, {} -- aside: those whose keys are paused, and their lists
while #keys < wanted and heap[1] do
  local list = heap[1]
  local key = list.words[list.at]
  if not (paused and pause_of(key, '\n')) then
    keys[#keys + 1] = key
  elseif head_of(list) >= HELD then
    break -- all that are left are
  else
    aside[#aside + 1] = { list.name, text_of(head_of(list) + HELD), key }
  end
  list.taken, list.at = list.taken + 1, list.at + 2
  if not list.words[list.at] then
    read(list)
  end
  if not head_of(list) then
    heap[1] = heap[#heap]
    heap[#heap] = nil
  end
  if heap[2] then
    settle(1)
  end
end
local granted = 0
if #keys + #aside > 0 then
  for _, list in ipairs(lists) do
    if list.taken > 0 then
      redis.call('ZREMRANGEBYRANK', list.name, 0, list.taken - 1)
    end
  end
  for _, held in ipairs(aside) do
    redis.call('ZADD', unpack(held))
  end
end
if #keys > 0 then
  tally('unassigned', -#keys)
  local texts = redis.call('HMGET', jobs, unpack(keys))
  local bodies = redis.call('HMGET', payloads, unpack(keys))
  local seen = {}
  for n, key in ipairs(keys) do
    local r = parse(texts[n])
    local is_whole = r and r[STATE] == 'U' and (bodies[n] or has(r, 'p'))
    if r and r[STATE] == 'U' and not is_whole and not seen[key] then
      tally('unassigned', 1) -- its payload is gone: the walk finds it in no index, and has it parked
    elseif is_whole and not seen[key] then
      seen[key] = true
      if not has(r, 'p') then
        later('HDEL', payloads, key)
      end
      grant(key, r, target, bodies[n] or '')
      granted = granted + 1
    end
  end
end
write_batch()
close_lane()
local answers = { whole(lane_had[3]) + (tallies['unassigned'] or 0), granted }
if says ~= '' then
  local oldest = heap[1] and head_of(heap[1])
  answers[3] = oldest and oldest < HELD and text_of(oldest) or '0'
end
return answers
