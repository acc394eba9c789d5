--[[
place: give a key to the first open target with room, else leave it unassigned.

Needs  lane, record, batch; keys open, jobs, pending, payloads; argument pending_ms.
Targets come as  ARGV[a] = count, then (worker id, incarnation number) each, and
KEYS[k], KEYS[k + 1], ... = stream:W, owned:W each; later they are named by their place in that list.
A target counts only while `open` names the same incarnation and says how many keys it takes: fencing and
leaving take it out of `open` in the same script, so nothing is ever granted to one that is gone.
]]
local INLINE_BYTES_MAX = 1024
local targets = {}

local function read_targets(a, k)
  for i = 1, tonumber(ARGV[a]) do
    local id, n = ARGV[a + 2 * i - 1], ARGV[a + 2 * i]
    local stream, owned = KEYS[k + 2 * i - 2], KEYS[k + 2 * i - 1]
    local room = 0
    local open_n, takes = string.match(redis.call('HGET', open, id) or '', '^(%d+)|(%d+)|%d+$')
    if open_n == n then
      room = tonumber(takes) - redis.call('XLEN', stream) - redis.call('SCARD', owned)
    end
    targets[i] = { name = id .. '.' .. n, stream = stream, room = room }
  end
  return a + 2 * #targets + 1, k + 2 * #targets
end

local function first_with_room(ranked)
  for i in string.gmatch(ranked, '%d+') do
    local target = targets[tonumber(i)]
    if target and target.room > 0 then
      return target
    end
  end
end

-- The payload is in hand or, with flag p, in `payloads` where it stays.
local function grant(key, r, target, payload)
  target.room = target.room - 1
  local first = r[EPOCH] == '0'
  local accepted = accepted_of(r)
  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'P', target.name, stamp(), ''
  r[ACCEPTED] = first and '' or accepted
  local meta = table.concat({ r[ID], r[HANDLER], r[KIND], r[ATTEMPT], r[FLAGS], r[MARKS], r[ACCEPTED] }, '|')
  if has(r, 'p') then
    redis.call('XADD', target.stream, r[EPOCH] .. '-0', 'k', key, 'm', meta)
  else
    redis.call('XADD', target.stream, r[EPOCH] .. '-0', 'k', key, 'm', meta, 'p', payload)
  end
  later('ZADD', pending, now + pending_ms, key)
  later('HSET', jobs, key, pack(r))
end

local function unassign(key, r, payload, unassigned)
  local first = r[EPOCH] == '0'
  local accepted = accepted_of(r)
  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'U', '', stamp(), ''
  r[ACCEPTED] = first and '' or accepted
  if not has(r, 'p') then
    later('HSET', payloads, key, payload)
  end
  later('ZADD', unassigned, accepted_of(r), key)
  later('HSET', jobs, key, pack(r))
  tally('unassigned', 1)
end
