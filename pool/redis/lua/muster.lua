--[[
muster: tell how members of batches are; one that was never accepted, or is lost, never begins any more.

KEYS[1] lane       hash    counters
KEYS[2] jobs       hash    key -> record
KEYS[3] letters    hash    (job id, key) -> dead letter
KEYS[4] kept       zset    (length, job id, key) of some jobs -> until when their answers are remembered
KEYS[...] results          result:ID KEY per item
ARGV[1] generation  str
ARGV[2] missing_ms  int   > 0; for how long what never came is refused
ARGV[3] expects     str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[...] items           key, job id each

Uses     lane, (typed), expected, keep
Returns  per item: its state, P R W U Q; or how it has ended: s f c; or m: neither a job nor an outcome is there
Errors   POOLDATALOST <lane>
Cost     O(items); 4 commands each, 6 a call
Why Lua  it may be dispatched at this moment: then either it is there, or it is refused.

What is refused stands where the outcome would, as dispatch leaves it.  Each m is for so long from now on: what stood
there before has little time left, maybe.  So the text grows by a space: who ends the one of before finds another
length (see lib/keep).
]]
redis.call('HLEN', letters)
redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
local WORDS = { done = 's', parked = 'f', cancelled = 'c' }
local answers = {}
for a = 4, #ARGV, 2 do
  local key, id, result = ARGV[a], ARGV[a + 1], KEYS[5 + (a - 4) / 2]
  local pair = pair_of(id, key)
  local text = redis.call('HGET', jobs, key)
  local its = text and string.match(text, '^[^|]*|[^|]*|([^|]+)|')
  if its ~= id then
    text = redis.call('HGET', jobs, '\t' .. pair) -- as lib/queue.lua names one that is queued
  end
  if text then
    answers[#answers + 1] = string.match(text, '^[PRWUQ]') or 'W' -- who comes to it parks what cannot be read
  else
    local outcome = typed('GET', result)
    local word = type(outcome) == 'string' and string.match(outcome, '^%l+')
    if redis.call('HEXISTS', letters, pair) == 1 then
      word = 'parked'
    elseif not outcome or word == 'refused' then
      local grown = string.rep(' ', outcome and #outcome - 12 or 0)
      remember(result, pair, 'refused\nENDED' .. grown, text_of(missing_ms))
    end
    answers[#answers + 1] = WORDS[word] or 'm'
  end
end
close_kept()
close_lane()
return answers
