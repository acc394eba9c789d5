--[[
tick: have the next tick of a ticker, if its time has come and nobody has had it.

KEYS[1] lane      hash    counters
KEYS[2] tickers   hash    name -> TIME TOKEN DONE MISSED: of its latest tick the nominal time (ms of pool time), the
                          call that had it, 1 once who had it has dealt with it, and how many nobody had before it
ARGV[1] generation  str
ARGV[2] expects      str   pool time that the caller expects; 0: it knows none; see lib/expected
ARGV[3] name         str
ARGV[4] token        str   of this call, for its repeats; empty: the caller leaves, and takes no more
ARGV[5] every_ms     int   > 0
ARGV[6] done         int   nominal time of the tick that the caller has dealt with; 0: none

Uses     lane, expected
Returns  nominal time of the tick that is the caller's (0: none is), how many nobody had before it, 1 if who had the
         one before has dealt with it, else 0; in how many ms the next one comes
Errors   POOLDATALOST <lane>
Cost     O(1); 3 commands
Why Lua  whether anybody has had the tick, and that the caller has it, are one step.

    none known       --> the latest time that has passed counts as had: the first tick is the next one
    TIME before that --> the caller's; of several that have passed only the latest, the others nobody had
    TIME is that     --> somebody's, or the caller's own if its token stands there
    TIME is to come  --> somebody else wrote it: begun anew
Dying with a tick leaves DONE 0, of which the next one is told.
]]
local at, had, dealt, missed = string.match(redis.call('HGET', tickers, name) or '', '^(%d+) (%S+) ([01]) (%d+)$')
local latest = now - now % every_ms
at = at and #at <= 16 and tonumber(at) or -1
if at > latest + every_ms then
  at = -1
end
local answer = { '0', '0', 1 }
if at >= latest and had == token then
  answer = { text_of(at), text_of(whole(missed)), 1 }
elseif at < latest and token ~= '' then
  local is_first = at < 0
  missed = is_first and 0 or math.max(0, math.floor((latest - at) / every_ms) - 1)
  if not is_first then
    answer = { text_of(latest), text_of(missed), (dealt == '1' or at == done) and 1 or 0 }
  end
  redis.call('HSET', tickers, name, table.concat({ text_of(latest), is_first and '-' or token, is_first and 1 or 0, text_of(missed) }, ' '))
elseif at == done and dealt == '0' then
  redis.call('HSET', tickers, name, table.concat({ text_of(at), had, '1', missed }, ' '))
end
answer[4] = text_of(latest + every_ms - now)
close_lane()
return answer
