--[[
look: tell how jobs are, and register a node to be told when they start or end.

KEYS[1] lane       hash    incarnation
KEYS[2] jobs       hash    key -> record
KEYS[3] deaths     zset    PROCESS.MS -> when it died; see fence
KEYS[4] letters    hash    (job id, key) -> dead letter, whose outcome is known as long as it is there
KEYS[...] rest             result:ID KEY per item; then, where the dead are to give up their places, keepalive and cleanup
ARGV[1] generation  str
ARGV[2] node         str   who is to be told; empty: only look
ARGV[3] bytes_max    int   > 0; of outcomes; one alone may be larger
ARGV[...] items      key, job id each; an empty job id means whichever job the key has

Uses     lane, lease, (typed), record, marks
Returns  per item: the record without void marks (also of one that is queued), or = and the outcome, or ? and stamp and server ms: neither is known,
         or what is known cannot be read; or + where that would be too much with the outcomes before it
Errors   POOLDATALOST <lane>
Cost     O(1) per item; 4 commands, 1 more where no outcome is known, 2 for each place that may be freed
Why Lua  an outcome that arrives between look and registration would never be told.
]]
local WAITERS_MAX = 16
local lives = {}
local frees = #KEYS > 4 + (#ARGV - 3) / 2
-- Who has no lease at the moment gives its place to one who asks: if it lives, it asks again.
local function living(waiters)
  local kept = {}
  for name in string.gmatch(waiters, '[^,]+') do
    if lives[name] == nil then
      local ends, claim = redis.pcall('ZSCORE', KEYS[#KEYS - 1], name), redis.pcall('HEXISTS', KEYS[#KEYS], name)
      lives[name] = type(ends) == 'string' and tonumber(ends) > lease_now and claim == 0
    end
    kept[#kept + 1] = lives[name] and name or nil
  end
  return table.concat(kept, ','), #kept
end
local answers, writes, bytes = {}, {}, 0
local nothing = '?' .. text_of(stamp_last) .. ' ' .. text_of(now)
for a = 4, #ARGV, 2 do
  local key, id = ARGV[a], ARGV[a + 1]
  local name, r, outcome = key, parse(redis.call('HGET', jobs, key)), nil
  local is_it = r and (id == '' or r[ID] == id)
  if not is_it and id ~= '' and bytes <= bytes_max then
    outcome = typed('GET', KEYS[4 + (a - 2) / 2])
    if not outcome then
      local letter = typed('HGET', letters, id .. ' ' .. key)
      outcome = type(letter) == 'string' and string.match(letter, '^[^\n]*\n[^\n]*\n[^\n]*')
    end
    if type(outcome) ~= 'string' then
      name = '\t' .. id .. ' ' .. key -- as lib/queue.lua names one that is queued
      r = parse(redis.call('HGET', jobs, name))
      is_it = r
    end
  end
  if is_it then
    local listed = ',' .. r[WAITERS] .. ','
    local _, count = string.gsub(r[WAITERS], '[^,]+', '')
    local is_new = node ~= '' and not string.find(listed, ',' .. node .. ',', 1, true)
    if is_new and frees and count >= WAITERS_MAX then
      r[WAITERS], count = living(r[WAITERS])
    end
    if is_new and count < WAITERS_MAX then
      r[WAITERS] = r[WAITERS] ~= '' and r[WAITERS] .. ',' .. node or node
      writes[name] = pack(r)
    end
    answers[#answers + 1] = judged(pack(r), r)
  elseif bytes > bytes_max then
    answers[#answers + 1] = '+'
  else
    local is_known, is_first = type(outcome) == 'string', bytes == 0
    bytes = is_known and bytes + #outcome or bytes
    answers[#answers + 1] = not is_known and nothing or (is_first or bytes <= bytes_max) and '=' .. outcome or '+'
  end
end
for name, text in pairs(writes) do
  if type(redis.pcall('HSET', jobs, name, text)) == 'table' then
    -- The server is full.  Memory is checked only until a script's first write: let that be one that frees.
    redis.call('HDEL', lane, '\n')
    redis.call('HSET', jobs, name, text)
  end
end
return answers
