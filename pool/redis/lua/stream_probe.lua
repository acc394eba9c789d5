--[[
stream_probe: where several streams are.

KEYS[...] streams      per stream two: events, meta
ARGV[...] positions    per stream: the id after which somebody wants to read; newest: the last one

Uses     typed, ends
Returns  per stream eight: the id generated last ('': no stream), events ever added, the newest id that a
         length cap took ('' none), 1 if what was there before has come to its end as was asked for, which life it
         is ('' nobody knows), and of the last event up to the position its id, number and mark ('': there is none);
         '!' eight times for one that is no stream: one broken key hides no other
Cost     O(streams); 3 commands each, which read the first and the last event; writes nothing
Why Lua  one answer for all streams of a reader; and what XINFO tells of them would come with two bodies.
]]
local answer = {}
for i = 1, #KEYS, 2 do
  local events, meta, position = KEYS[i], KEYS[i + 1], ARGV[(i + 1) / 2]
  local facts = { '', '0', '', '', '', '', '', '' }
  local info, had = redis.pcall('XINFO', 'STREAM', events), typed('HMGET', meta, 'trimmed', 'planned', 'born')
  local is_missing = info.err and string.find(info.err, 'no such key', 1, true)
  if had.err or (info.err and not is_missing and typed('XINFO', 'STREAM', events).err) then
    facts = { '!', '!', '!', '!', '!', '!', '!', '!' }
  elseif info.err then
    facts[4] = has_ended(meta) and '1' or ''
  else
    for j = 1, #info, 2 do
      if info[j] == 'last-generated-id' then
        facts[1] = info[j + 1]
      elseif info[j] == 'entries-added' then
        facts[2] = string.format('%.0f', info[j + 1])
      end
    end
    facts[3] = string.match(had[1] or '', '^%d+-%d+$') or '' -- of whatever stands there
    facts[4] = had[2] == '1' and '1' or ''
    facts[5] = had[3] or ''
    position = position == 'newest' and facts[1] or position
    local found = redis.call('XREVRANGE', events, position, '-', 'COUNT', 1)[1]
    facts[6] = found and found[1] or ''
    for j = 1, found and #found[2] or 0, 2 do
      local at = found[2][j] == 'n' and 7 or found[2][j] == 'm' and 8
      if at then
        facts[at] = found[2][j + 1]
      end
    end
  end
  for _, fact in ipairs(facts) do
    answer[#answer + 1] = fact
  end
end
return answer
