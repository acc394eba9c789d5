--[[
finish: take a record out of its present state, or end it for good.

Needs  lane, record, batch, keep, steps; keys jobs, pending, due, payloads, checkpoints, parked, letters, journal,
       source_owned, source_stream (of the record's owner); argument parked_ms.
]]
-- The payload as it is now, nil when it stays in `payloads` (flag p), or false when somebody removed it.
local function payload_of(key, r)
  if has(r, 'p') then
    return nil
  end
  if r[STATE] ~= 'P' then
    return redis.call('HGET', payloads, key)
  end
  local entry = redis.call('XRANGE', source_stream, r[EPOCH] .. '-0', r[EPOCH] .. '-0')[1]
  local fields = entry and entry[2] or {}
  return fields[1] == 'k' and fields[2] == key and fields[5] == 'p' and fields[6] or false
end

-- Out of the indexes of its present state; the payload is the caller's to keep.
local function lift(key, r, unassigned)
  if r[STATE] == 'P' then
    later('XDEL', source_stream, r[EPOCH] .. '-0')
    later('ZREM', pending, key)
  elseif r[STATE] == 'R' then
    later('SREM', source_owned, key)
  elseif r[STATE] == 'W' then
    tally('waiting', -1)
  else
    later('ZREM', unassigned, key)
    tally('unassigned', -1)
  end
  if has(r, 'd') then
    later('ZREM', due, 'k:' .. key)
    flag(r, 'd', false)
  end
  if r[STATE] ~= 'P' and not has(r, 'p') then
    later('HDEL', payloads, key)
  end
end

local function journal_add(edge, key, r, detail)
  redis.call('XADD', journal, 'MAXLEN', '~', 10000, '*', 'edge', edge, 'key', key, 'id', r[ID],
    'owner', r[OWNER], 'epoch', r[EPOCH], 'attempt', r[ATTEMPT], 'detail', detail)
end

-- How long before now it was accepted and began (what was never acknowledged, and has begun, did so just now),
-- what its marks weigh, in halves, and how far it said it was; what is none is left empty, or out at the end.
local function history_of(r, has_begun)
  local began = r[STATE] == 'R' and tonumber(r[SINCE]) or (r[STATE] == 'P' and has_begun and now)
  local halves = 0
  for mark in string.gmatch(r[MARKS], '[^,]+') do
    halves = halves + (string.find(mark, '^%d+$') and tonumber(mark) or string.sub(mark, -1) == '-' and 1 or 2)
  end
  local accepted = math.max(0, now - math.floor(tonumber(accepted_of(r)) / 1000))
  local progress = more_of(r[MORE], 'p')
  return text_of(accepted) .. ',' .. (began and text_of(math.max(0, now - began)) or '') .. ','
    .. (halves > 0 and text_of(halves) or '') .. (progress and ',' .. progress or '')
end

-- word: done | parked | cancelled.  Outcome: word|epoch|owner|attempt|ended ms,history|detail, newline, body
local OUTCOME = '^(%l+)|(%d+)|([^|]*)|' -- word, epoch, owner; whole it is read in core/record.py
local function finish(key, r, word, ttl_ms, detail, body, result, inbox, unassigned, has_begun)
  detail = plain(detail)
  if word == 'parked' then
    body = plain(body)
    local payload = has(r, 'p') and redis.call('HGET', payloads, key) or payload_of(key, r) or ''
    -- Old letters go when new ones come, a few at a time.
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', now - parked_ms, 'LIMIT', 0, 16)) do
      redis.call('ZREM', parked, old)
      redis.call('HDEL', letters, old)
      redis.call('HDEL', checkpoints, letters_steps(old))
    end
    local pair = pair_of(r[ID], key)
    redis.call('ZADD', parked, now, pair)
    redis.call('HSET', letters, pair, table.concat({ r[KIND], r[HANDLER], r[ATTEMPT], r[MARKS], text_of(now),
      detail }, '|') .. '\n' .. body .. '\n' .. payload)
  end
  local history = history_of(r, has_begun)
  lift(key, r, unassigned)
  if has(r, 'p') then
    later('HDEL', payloads, key)
  end
  if has(r, 'b') then
    later('HDEL', checkpoints, key)
  end
  if has(r, 's') then
    if word == 'parked' then
      park_steps(key, pair_of(r[ID], key))
    end
    later('HDEL', checkpoints, steps_name(key))
  end
  if has(r, 'i') then
    redis.call('UNLINK', inbox) -- it may be large
  end
  later('HDEL', jobs, key)
  remember(result, pair_of(r[ID], key), table.concat({ word, r[EPOCH], r[OWNER], r[ATTEMPT], text_of(now) .. ',' .. history,
    detail }, '|') .. '\n' .. body, ttl_ms)
  tally(word, 1)
  if word ~= 'done' then
    journal_add(word, key, r, detail)
  end
  return r[WAITERS] ~= '' and 'OK ' .. r[WAITERS] or 'OK'
end
