--[[
batch_add: note who the next members of a batch are, before they are dispatched; see lib/members.

KEYS[1] lane       hash    incarnation
KEYS[2] batch      hash    batch:ID
ARGV[1] generation  str
ARGV[2] nonce       str   of the batch
ARGV[3] first       int   index of the first of these
ARGV[4] members_max int   > 0; how many a batch may have
ARGV[...] items           key, a tab, and a digest of handler and payload each; or "\b" and the id of a batch

Uses     lane, members
Returns  OK <a letter for each: . has not ended, else how it did> (they may have been noted before) | GONE (it is forgotten, or is another
         one) | SEALED <members> (and these are not among them) | FULL <members> |
         OTHER <index> <item> (there that one was noted)
Errors   POOLDATALOST <lane>
Cost     O(items); 5 commands, 4 for each 512 members
Why Lua  two that add would note their members under the same indexes.
]]
local b = read_batch(batch, '')
if not b or b.nonce ~= nonce then
  return 'GONE'
end
local last, ended = first + #ARGV - 4, {}
if first > b.members then
  return 'OTHER ' .. text_of(b.members) .. ' ' -- those between are of a call that has not come
elseif last > b.members and b.state ~= 'o' then
  return 'SEALED ' .. text_of(b.members)
elseif last > members_max then
  return 'FULL ' .. text_of(b.members)
end
local a, writes = 5, {}
for k = math.floor(first / CHUNK), math.floor((last - 1) / CHUNK) do
  local had, words = part_of(b, 'n', k), part_of(b, 'w', k)
  local n, keys = k * CHUNK, {}
  for word in string.gmatch(had, '[^\n]+') do
    if n >= first and n < last then
      if word ~= ARGV[a] then
        return 'OTHER ' .. text_of(n) .. ' ' .. word
      end
      ended[#ended + 1] = string.sub(words, n - k * CHUNK + 1, n - k * CHUNK + 1)
      a = a + 1
    end
    n = n + 1
  end
  local new = math.min((k + 1) * CHUNK, last) - n
  if new > 0 then
    for i = a, a + new - 1 do
      keys[#keys + 1] = ARGV[i]
    end
    local dots = string.rep('.', new)
    writes[#writes + 1] = 'n:' .. text_of(k)
    writes[#writes + 1] = had .. (had ~= '' and '\n' or '') .. table.concat(keys, '\n')
    writes[#writes + 1] = 'w:' .. text_of(k)
    writes[#writes + 1] = words .. dots
    ended[#ended + 1] = dots
    a = a + new
  end
end
if #writes > 0 then
  b.members = last
  b.sealed = now + b.open
  redis.call('HSET', batch, 'head', head_of(b), unpack(writes))
end
return 'OK ' .. table.concat(ended)
