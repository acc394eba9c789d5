--[[
finish: take a record out of its present state, or end it for good.

Needs  lane, record, batch, queue, keep, steps, channel, follow; keys lane, jobs, pending, due, payloads, checkpoints, parked, letters, attempts,
       journal, source_owned, source_stream (of the record's owner); arguments parked_ms, brief_ms, results_max.
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
  elseif r[STATE] == 'W' or r[STATE] == 'Q' then
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

-- How long before now it was accepted and began (what was never acknowledged, and has begun, did so just now),
-- how many deaths it is suspected of, and how far it said it was; what is none is left empty, or out at the end.
local function history_of(r, has_begun)
  local began = r[STATE] == 'R' and tonumber(r[SINCE]) or (r[STATE] == 'P' and has_begun and now)
  local crashes = whole(string.match(r[MARKS], '^%d+'))
  local accepted = math.max(0, now - math.floor(tonumber(accepted_of(r)) / 1000))
  local progress = more_of(r[MORE], 'p')
  return text_of(accepted) .. ',' .. (began and text_of(math.max(0, now - began)) or '') .. ','
    .. (crashes > 0 and text_of(crashes) or '') .. (progress and ',' .. progress or '')
end

-- late kept
-- What `more` of an outcome has: of whom the id is known before it is dispatched, who follows, and of dead letters, also what
-- it was: h handler, k kind.
local function more_kept(r, word)
  local kept = {}
  for each in string.gmatch(r[MORE], '[^,]+') do
    kept[#kept + 1] = string.find(each, word == 'parked' and '^[dflorswx]' or '^[dflw]') and each or nil
  end
  if word == 'parked' or #kept > 0 then
    kept[#kept + 1] = 'h' .. r[HANDLER]
    kept[#kept + 1] = r[KIND] == 's' and 'ks' or nil
  end
  return table.concat(kept, ',')
end

-- What is kept of a failed attempt: when, which, whose, and what its owner says of it (JSON, without tabs).
local function attempt_entry(r, entry)
  return entry ~= '' and table.concat({ text_of(now), r[ATTEMPT], r[OWNER] ~= '' and r[OWNER] or '-',
    (string.gsub(entry, '%c', ' ')) }, ' ') or ''
end

-- The last attempts that have failed, and how, each as its owner wrote it; between them tabs.
local ATTEMPTS_MAX = 8
local function attempts_of(key, r, entry)
  local had = more_of(r[MORE], 't') and redis.call('HGET', attempts, key)
  local told = had and string.match(had, '^[^\t]*\t(.*)$') or ''
  local text = told .. (told ~= '' and entry ~= '' and '\t' or '') .. entry
  local _, tabs = string.gsub(text, '\t', '')
  for _ = ATTEMPTS_MAX, tabs do
    text = string.gsub(text, '^[^\t]*\t', '', 1)
  end
  return text
end

-- For how long: as was asked for it, else as its handler says, while there is room; and while its id must be known.
local results_had
local function kept_ms(r, text, ttl_ms)
  -- What somebody else wrote there counts as nothing.
  local asked, known = whole(more_of(r[MORE], 'r')), whole(more_of(r[MORE], 'w'))
  asked = asked > 0 and asked or tonumber(ttl_ms)
  if asked > brief_ms and asked > known then
    results_had = results_had or whole(redis.call('HGET', lane, 'results'))
    if results_had + (tallies['results'] or 0) + #text > results_max then
      asked = brief_ms
    end
  end
  return text_of(math.max(asked, known))
end
-- end kept

-- word: done | parked | cancelled; followers: further ones of what is done.  Returns OK[ <waiters or -> <unheard>], the
-- latter where something is due now: the next one of its key has its turn, or it has followers.
-- Outcome: word|epoch|owner|attempt|ended ms,history|more|detail, newline, body.
-- The body of what is parked is two lines, its error and its attempts; a dead letter is that, newline, payload.
local OUTCOME = '^(%l+)|(%d+)|([^|]*)|' -- word, epoch, owner; whole it is read in core/record.py
local function finish(key, r, word, ttl_ms, detail, body, result, inbox, unassigned, has_begun, followers)
  detail = plain(detail)
  if word == 'parked' then
    local failed, entry = string.match(body, '^([^\n]*)\n?(.*)$')
    body = plain(failed) .. '\n' .. attempts_of(key, r, attempt_entry(r, entry))
  end
  local is_queued = r[STATE] == 'Q'
  local pair = is_queued and string.sub(key, 2) or pair_of(r[ID], key)
  local has_next = (followers or (r[MORE] ~= '' and string.find(',' .. r[MORE], ',[bf]')))
    and release(pair, r, word, detail, body, followers or '')
  local history = history_of(r, has_begun)
  local text = table.concat({ word, r[EPOCH], r[OWNER], r[ATTEMPT], text_of(now) .. ',' .. history,
    r[MORE] == '' and word ~= 'parked' and '' or more_kept(r, word), detail }, '|') .. '\n' .. body
  if word == 'parked' then
    local payload = has(r, 'p') and redis.call('HGET', payloads, key) or payload_of(key, r) or ''
    -- Old letters go when new ones come, a few at a time.
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', now - parked_ms, 'LIMIT', 0, 16)) do
      redis.call('ZREM', parked, old)
      redis.call('HDEL', letters, old)
      redis.call('HDEL', checkpoints, letters_steps(old))
      redis.call('HDEL', payloads, '\f' .. old)
    end
    redis.call('ZADD', parked, now, pair)
    redis.call('HSET', letters, pair, text .. '\n' .. payload)
  end
  lift(key, r, unassigned)
  if has(r, 'p') then
    later('HDEL', payloads, key)
  end
  if has(r, 'b') then
    later('HDEL', checkpoints, key)
  end
  if has(r, 's') then
    if word == 'parked' then
      park_steps(key, pair)
    end
    later('HDEL', checkpoints, steps_name(key))
  end
  local unheard = 0
  if has(r, 'i') then
    unheard = has(r, 'n') and tonumber(redis.pcall('LLEN', inbox)) or 0 -- of another type it holds none
    redis.call('UNLINK', inbox) -- it may be large
  end
  if r[MORE] ~= '' then
    if more_of(r[MORE], 't') then
      redis.pcall('HDEL', attempts, key) -- as a call it would raise on another type
    end
    ttl_ms = kept_ms(r, text, ttl_ms)
  elseif tonumber(ttl_ms) > brief_ms then
    ttl_ms = kept_ms(r, text, ttl_ms)
  end
  later('HDEL', jobs, key)
  remember(result, pair, text, ttl_ms)
  tally(word, 1)
  if word ~= 'done' then
    journal_job(journal, word, is_queued and string.sub(key, #r[ID] + 3) or key, r, detail)
  elseif lane_had[11] then
    journal_followed(journal, word, key, r, string.match(history, ',(%d*)'))
  end
  if has(r, 'n') and promote(key) then
    return 'OK ' .. (r[WAITERS] ~= '' and r[WAITERS] or '-') .. ' ' .. text_of(unheard)
  elseif is_queued then
    leave_line(key, r[ID])
  end
  if has_next then
    return 'OK ' .. (r[WAITERS] ~= '' and r[WAITERS] or '-') .. ' 0'
  end
  return r[WAITERS] ~= '' and 'OK ' .. r[WAITERS] or 'OK'
end
