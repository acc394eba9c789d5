--[[
batch_look: tell how a batch is, which members have ended, in that order, or which have not; and register a node to be told
more; see lib/members.

KEYS[1] lane       hash    incarnation
KEYS[2] batch      hash    batch:ID
ARGV[1] generation  str
ARGV[2] nonce       str   of the batch; empty: whichever there is
ARGV[3] node        str   who is to be told; empty: only look
ARGV[4] what        str   ended | open
ARGV[5] from        int   ended: how many of them to pass over; open: index of the first
ARGV[6] members_max int   of how many it tells at most

Uses     lane, members
Returns  empty: there is none; else `what`, its head, released followers, where to go on (of `open`; -1: that was the end),
         the parent, then ended: index, letter, key each, open: index, key each
Errors   POOLDATALOST <lane>
Cost     O(members_max + members / 512 + 16 * 512); 5 commands, 3 for each 512 members
Why Lua  what ends between looking and registering would never be told.
]]
local WAITERS_MAX = 16
local b = read_batch(batch, '')
if not b or (nonce ~= '' and b.nonce ~= nonce) then
  return {}
end
if node ~= '' and not is_settled(b) and not string.find(',' .. b.waiters .. ',', ',' .. node .. ',', 1, true) then
  local names = {}
  for name in string.gmatch(b.waiters, '[^,]+') do
    names[#names + 1] = name
  end
  names[#names + 1] = node
  -- Who has been there longest gives way: if it lives, it asks again.
  local text = table.concat(names, ',', math.max(1, #names - WAITERS_MAX + 1))
  if type(redis.pcall('HSET', batch, 'waiters', text)) == 'table' then
    -- The server is full.  Memory is checked only until a script's first write: let that be one that frees.
    redis.call('HDEL', lane, '\n')
    redis.call('HSET', batch, 'waiters', text)
  end
end
local answers = { what, head_of(b), is_settled(b) and b.followers or '', '-1', b.parent or '' }
if what == 'open' then
  answers[4] = text_of(open_members(b, from, members_max, answers))
  return answers
end
local keys_of, chunks = {}, 0
local to = math.min(ended_of(b), from + members_max)
for e = math.floor(from / CHUNK), math.floor((to - 1) / CHUNK) do
  local at = e * CHUNK
  for index in string.gmatch(part_of(b, 'e', e), '%d+') do
    if at >= from and at < to then
      local k = math.floor(tonumber(index) / CHUNK)
      if not keys_of[k] then
        if chunks == CHUNKS_MAX then
          return answers
        end
        keys_of[k], chunks = {}, chunks + 1
        for key in string.gmatch(part_of(b, 'n', k), MEMBER_KEY) do
          table.insert(keys_of[k], key)
        end
      end
      local place = index - k * CHUNK + 1
      answers[#answers + 1] = index
      answers[#answers + 1] = string.sub(part_of(b, 'w', k), place, place)
      answers[#answers + 1] = keys_of[k][place] or ''
    end
    at = at + 1
  end
end
return answers
