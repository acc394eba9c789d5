--[[
requeue: put the lines behind some keys right: who is in none, whose turn it is, and who is to end.

KEYS[1] lane       hash    stamp
KEYS[2] jobs       hash    key -> record; also of who is queued: see lib/queue.lua
KEYS[3] payloads   hash    key -> payload; likewise, and the lines
KEYS[4] due        zset    k:KEY -> when
ARGV[1] generation  str
ARGV[...] items            key, job id each: one that is queued there; empty: nobody is meant

Uses     lane, record, batch, lapse, queue
Returns  per item: SOUND | MENDED | PROMOTED (there was no live job, and it is the next one's turn)
Errors   POOLDATALOST <lane>
Cost     O(line) per item; 5 commands each, 3 a call
Why Lua  what a line lacks is right only for the line as it is.

For the walk: none of this happens unless somebody has deleted or damaged what stands here.
]]
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass

local function requeue(key, id)
  local said, ids, is_in = 'SOUND', line_of(key), false
  for _, each in ipairs(ids) do
    is_in = is_in or each == id
  end
  local name = queued_name(key, id)
  local r = id ~= '' and parse(redis.call('HGET', jobs, name))
  if r and r[STATE] == 'Q' then
    if r[INTENT] == '' and not is_in then
      ids[#ids + 1] = id
      set_line(key, ids, 1)
      said = 'MENDED'
    end
    local ends = r[INTENT] ~= '' and now or begin_by(r)
    if ends and not redis.call('ZSCORE', due, 'k:' .. name) then
      flag(r, 'd', true)
      later('ZADD', due, text_of(ends), 'k:' .. name)
      later('HSET', jobs, name, pack(r))
      said = 'MENDED'
    end
  end
  if #ids == 0 then
    return said
  end
  local text = redis.call('HGET', jobs, key)
  local live = parse(text)
  if not text then
    return promote(key) and 'PROMOTED' or said
  elseif live and not has(live, 'n') then
    flag(live, 'n', true)
    later('HSET', jobs, key, pack(live))
    said = 'MENDED'
  end
  return said
end

local answers = {}
for a = 2, #ARGV, 2 do
  answers[#answers + 1] = requeue(ARGV[a], ARGV[a + 1])
end
write_batch()
close_lane()
return answers
