--[[
letters: tell of dead letters, from the one that was parked first, a page at a time.

KEYS[1] lane       hash    incarnation
KEYS[2] parked     zset    (job id, key) -> when it was parked
KEYS[3] letters    hash    (job id, key) -> dead letter
ARGV[1] generation  str
ARGV[2] at          str   score behind which to go on; empty: from the first one
ARGV[3] job         str   (job id, key) at that score behind which to go on
ARGV[4] since       str   score of the first that is wanted; -inf: of any
ARGV[5] until_      str   likewise of the last; +inf
ARGV[6] looked_max  int   > 0; how many are looked at
ARGV[7] bytes_max   int   > 0; of letters looked at; one alone may be larger
ARGV[8] found_max   int   > 0; how many are told of
ARGV[9] handler     str   of those that are wanted; empty: any
ARGV[10] cause      str   likewise
ARGV[11] prefix     str   of their keys, likewise

Uses     lane
Returns  how many were looked at; score and (job id, key) behind which to go on, both empty if that was the end;
         then of those that are wanted: score, (job id, key), head and error, bytes of payload each
Errors   POOLDATALOST <lane>
Cost     O(looked_max + log n) and bytes_max; 1 command a letter, 4 a call
Why Lua  a letter is looked at where it is: its payload may be large, and is not asked for.

Who goes on behind a letter that is gone may see some again that were parked in the same millisecond.
]]
redis.call('HLEN', letters)
local first
if at ~= '' then
  local rank = redis.call('ZRANK', parked, job)
  first = rank and rank + 1 or redis.call('ZCOUNT', parked, '-inf', '(' .. at)
else
  first = redis.call('ZCOUNT', parked, '-inf', '(' .. since)
end
local looked, bytes, found, next_at, next_job = 0, 0, {}, '', ''
local members = redis.call('ZRANGE', parked, first, first + looked_max, 'WITHSCORES')
for i = 1, #members, 2 do
  local member, score = members[i], members[i + 1]
  if until_ ~= '+inf' and tonumber(score) > tonumber(until_) then
    next_at, next_job = '', ''
    break
  elseif looked >= looked_max or bytes > bytes_max or #found >= 4 * found_max then
    next_at, next_job = members[i - 1], members[i - 2]
    break
  end
  local text = redis.call('HGET', letters, member) or ''
  looked, bytes = looked + 1, bytes + #text
  local head, failed, size = string.match(text, '^([^\n]*)\n([^\n]*)\n[^\n]*\n()')
  local more, its_cause = string.match(head or '', '^parked|[^|]*|[^|]*|[^|]*|[^|]*|([^|]*)|(.*)$')
  local its_handler = more and (string.match(',' .. more, ',h([^,]*)') or '')
  local key = string.match(member, '^%S+ (.*)$') or ''
  if more and (handler == '' or handler == its_handler) and (cause == '' or cause == its_cause)
    and string.sub(key, 1, #prefix) == prefix then
    for _, word in ipairs({ score, member, head .. '\n' .. failed, #text - size + 1 }) do
      found[#found + 1] = word
    end
  end
end
return { looked, next_at, next_job, unpack(found) }
