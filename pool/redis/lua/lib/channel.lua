--[[
channel: what a step in this lane is to cause in a lane, this one too, is written here in that very step.

Needs  lane, record, batch, out; keys due, payloads.
Gives  release(pair, r, word, detail, body, more_text): whether something is to be carried over; tell_batch(member, word).

No script touches two lanes.  What is for lane B stands in A's `payloads`, under names that no key can be, as keys
hold no control characters: so no script has a key more for it.

    A  "\r" B         first next root tail: which messages there are, and the names of the one before them and of the last
    A  "\r" B " " N   message N: its name (16 hex digits), and what it says
    A  "\f" ID " " KEY   the followers of a job that has not ended, see below
    A  due  o:B       when somebody is to come for the messages to B; there while there are some
    B  "\v" A         the name of the last message from A that was carried out

    --settle, in A--> written, o:B due now --outgoing--> told, o:B due later --incoming, in B--> done, "\v" A is its name
                        ^                                        |                                      |
                        +------ who carried it has died ---------+--------------------------------------+--outgoing--> gone

A message's name is a hash of the one before it and of what it says.  B carries out what comes behind the one that
"\v" A names, so of a repeat, or of a late copy of a call, nothing is done twice.  Names are only compared for equality:
they have no order that a clock, or a failover to a server that is behind, could turn round.  Where B's is none of those
that A has (the data of either are not those of before), B does nothing and says so, and `outgoing` has A go on
from there, if it still stands as it was told and has no message of that name: that is journalled, and told.  B knows
jobs by their ids, too, so what it has had is not accepted once more.

Nothing is refused in B for room or limits: a job whose key has a live one stands in line behind it, one that no worker
takes waits for one; what cannot be read is a dead letter.  So it never blocks.  Who settles comes for o:B
at once; when he dies, whoever sweeps next; when o:B itself is lost, the walk.

A job's followers are one text: a line each, and behind it what it tells the lengths of (core/followers.py writes it):

    WHEN LANE DELAY PLACE KIND NAME #KEY #ID #HANDLER #MORE #PAYLOAD\n KEY ID HANDLER MORE PAYLOAD

WHEN t: it is done, o: it ended otherwise; PLACE where in the payload `null` stands for what its predecessor has to say,
or -1; NAME is ID and KEY as a word.  A payload is a call, and behind it the text of its own followers: `f` in MORE is the
length of the call, and later, in outcomes, the NAMEs of those that were released.
]]
local FOLLOWER = '^([to]) (%d+) (%d+) (-?%d+) ([js?]) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()'
local outs = {} -- lane -> what stands under its name

local function send_out(to, content)
  local out = outs[to] or read_out(to)
  outs[to] = out
  if out.first == out.next then
    later('ZADD', due, text_of(at_once), 'o:' .. to)
  end
  out.tail = string.sub(redis.sha1hex(out.tail .. content), 1, 16)
  later('HSET', payloads, out_message(to, out.next), out.tail .. content)
  out.next = out.next + 1
  later('HSET', payloads, '\r' .. to, out_head(out))
  tally('outgoing', 1)
end

-- A call with what the predecessor has to say.  Bytes are a call's only argument, or none of it; what a codec of the
-- user's own made cannot stand in it: see core/codec.py.
local function with_value(call, place, value)
  local before, behind = string.sub(call, 1, place), string.sub(call, place + 5)
  local first = string.byte(value)
  if first == 0 or first == 1 then
    local head = behind == ']' and string.match(before, '^([^%[]*)%[$')
    return first == 0 and head and head .. value or 'bytes cannot stand among other arguments'
  end
  return before .. value .. behind
end

-- Why a job was not done, as JSON.
local function reason_of(word, detail, body)
  local failed = word == 'parked' and string.match(body, '^[^\n]*') or ''
  local text = word .. (detail ~= '' and ': ' .. detail or '') .. (failed ~= '' and ': ' .. failed or '')
  return '"' .. string.gsub(text, '[\\"]', '\\%0') .. '"'
end

-- Of a member of a batch, see members: how it has ended.
local function tell_batch(member, word)
  local index, to, nonce, id = string.match(member, '^(%d+)/(%d+)/([^/]+)/(.+)$')
  if index then
    send_out(to, 'e ' .. index .. ' ' .. nonce .. ' ' .. word .. '\n' .. id)
  end
end

-- How it ended, as `finish` has it; more_text: of further followers.
-- What is parked, and nobody follows that, keeps those who will follow its replay.
local function release(pair, r, word, detail, body, more_text)
  local member = more_of(r[MORE], 'b')
  if member then
    tell_batch(member, word == 'done' and 's' or word == 'parked' and 'f' or 'c')
  end
  local value = word == 'done' and body or reason_of(word, detail, body)
  local has_text = more_of(r[MORE], 'f')
  local text = (has_text and redis.call('HGET', payloads, '\f' .. pair) or '') .. more_text
  local at, names = 1, {}
  while true do
    local when, to, delay, place, kind, name, key_size, id_size, handler_size, more_size, size, from =
      string.match(text, FOLLOWER, at)
    if not when then
      break
    end
    local more_at = from + key_size + id_size + handler_size
    at = more_at + more_size + size
    if (when == 't') == (word == 'done') then
      local more, payload = string.sub(text, more_at, more_at + more_size - 1), string.sub(text, more_at + more_size, at - 1)
      if place ~= '-1' then
        local call_size = more_of(more, 'f')
        local call = with_value(string.sub(payload, 1, call_size or -1), tonumber(place), value)
        payload = call .. (call_size and string.sub(payload, call_size + 1) or '')
        more = call_size and with_more(more, 'f', #call) or more
      end
      send_out(to, table.concat({ 'j', delay, kind, key_size, id_size, handler_size, #more, #payload }, ' ') .. '\n'
        .. string.sub(text, from, more_at - 1) .. more .. payload)
      names[#names + 1] = name
    end
  end
  tally('released', #names)
  if has_text and (word ~= 'parked' or #names > 0) then
    later('HDEL', payloads, '\f' .. pair)
    r[MORE] = with_more(r[MORE], 'f', nil)
  end
  if #names > 0 then
    r[MORE] = with_more(r[MORE], 'f', table.concat(names, ';'))
  end
  return #names > 0 or member ~= nil
end
