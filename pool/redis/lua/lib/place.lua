--[[
place: give a key to the first open target with room, else leave it unassigned.

Needs  lane, record, batch, pause; keys open, jobs, pending, payloads; argument pending_ms.
The script says in `queues` of which unassigned:H somebody waits in.
Room is a free slot.  Where somebody waits nothing overtakes: who comes joins that queue, and a target with room
gets its head, which may be who has just joined, if it was accepted first.
What is paused is left unassigned, whoever has room: all that is granted is granted here, or by pull.

Targets come as  ARGV[a] = count, then (worker id, number) each, and
KEYS[k], KEYS[k + 1], ... = stream:W, owned:W each; later they are named by their place in that list.
A target counts only while `open` names the same number and says how many keys it takes: fencing and
leaving take it out of `open` in the same script, so nothing is ever granted to one that is gone.
]]
local targets = {}
local queues = {}
local JUNK_MAX = 16 -- entries without a job that one turn takes out of a queue

local function read_targets(a, k)
  for i = 1, tonumber(ARGV[a]) do
    local id, n = ARGV[a + 2 * i - 1], ARGV[a + 2 * i]
    local stream, owned = KEYS[k + 2 * i - 2], KEYS[k + 2 * i - 1]
    local room = 0
    local open_n, takes = string.match(redis.call('HGET', open, id) or '', '^(%d+)|(%d+)|%d+$')
    if open_n == n then
      room = tonumber(takes) - redis.call('XLEN', stream) - redis.call('SCARD', owned)
    end
    targets[i] = { name = id .. '.' .. n, stream = stream, room = room, is_open = open_n == n and takes ~= '0' }
  end
  return a + 2 * #targets + 1, k + 2 * #targets
end

local function first_with_room(ranked, may_have)
  for i in string.gmatch(ranked, '%d+') do
    local target = targets[tonumber(i)]
    if target and target.room > 0 and (not may_have or may_have(target)) then
      return target
    end
  end
end

-- late numbers
local function last_number(stream)
  local facts = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #facts, 2 do
    if facts[i] == 'last-generated-id' then
      return math.min(whole(string.match(facts[i + 1], '^%d+')), STAMP_MAX)
    end
  end
  return 0
end
-- end numbers

-- The payload is in hand or, with flag p, in `payloads` where it stays.
local function grant(key, r, target, payload)
  target.room = target.room - 1
  local first = r[EPOCH] == '0'
  local accepted = accepted_of(r)
  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'P', target.name, stamp(), ''
  r[ACCEPTED] = first and '' or accepted
  local words = { target.stream, r[EPOCH] .. '-0', 'k', key, 'm',
    table.concat({ r[ID], r[HANDLER], r[KIND], r[ATTEMPT], r[FLAGS], r[MARKS], r[ACCEPTED], r[MORE] }, '|') }
  if not has(r, 'p') then
    words[7], words[8] = 'p', payload
  end
  local refusal = redis.pcall('XADD', unpack(words)).err
  if refusal then
    if string.find(refusal, 'equal or smaller', 1, true) then
      -- Somebody wrote into the stream, or into the lane's stamp: go on from the later of the two.
      stamp_last = math.max(stamp_last, last_number(target.stream))
      r[EPOCH] = stamp()
      words[2] = r[EPOCH] .. '-0'
    end
    redis.call('XADD', unpack(words))
  end
  later('ZADD', pending, now + pending_ms, key)
  later('HSET', jobs, key, pack(r))
end

-- late line
local function unassign(key, r, payload, unassigned, is_held)
  local first = r[EPOCH] == '0'
  local accepted = accepted_of(r)
  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'U', '', stamp(), ''
  r[ACCEPTED] = first and '' or accepted
  if not has(r, 'p') then
    later('HSET', payloads, key, payload)
  end
  later('ZADD', unassigned, is_held and text_of(whole(accepted_of(r)) + HELD) or accepted_of(r), key)
  later('HSET', jobs, key, pack(r))
  tally('unassigned', 1)
end

local function give_head(target, unassigned)
  write_batch() -- who joined in this call is in line, too
  for _ = 1, JUNK_MAX do
    local key = redis.call('ZRANGE', unassigned, 0, 0)[1]
    if not key then
      queues[unassigned] = false
      return nil
    end
    local held = paused and hold_back(unassigned, key)
    if held == 'last' then
      return nil
    end
    local r = not held and parse(redis.call('HGET', jobs, key))
    if not held then
      redis.call('ZREM', unassigned, key)
      tally('unassigned', -1)
    end
    if r and r[STATE] == 'U' then
      local payload = not has(r, 'p') and redis.call('HGET', payloads, key)
      if payload or has(r, 'p') then
        had_turn[key] = true -- what this call has read of it is not true any more
        if payload then
          redis.call('HDEL', payloads, key)
        end
        grant(key, r, target, payload)
        queues[unassigned] = redis.call('EXISTS', unassigned) == 1
        return key
      end
      tally('unassigned', 1) -- its payload is gone: the walk finds it in no index, and has it parked
    end
  end
end
-- end line

-- Returns whether it has an owner now.  What had one, or is suspected and has been scattered, waits in no line.
local function place(key, r, target, payload, unassigned, is_ahead)
  local pause = paused and pause_of(key, r[HANDLER])
  if pause then
    unassign(key, r, payload, unassigned, pause == 'key')
    return false
  end
  if target and (is_ahead or not queues[unassigned]) then
    grant(key, r, target, payload)
    return true
  end
  unassign(key, r, payload, unassigned)
  local is_behind = queues[unassigned]
  queues[unassigned] = true
  return is_behind and target and give_head(target, unassigned) == key
end
