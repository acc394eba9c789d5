--[[
clock: notice that the server's clock has stepped, and take it back by another offset; only renewals do.

Needs  lane, ttl, lease, journal, silence; keys lane, keepalive, journal, due; arguments expected_ms, since_ms, turn, off_ms, who.
Gives  keep_time(): sets now, seen, lease, offset, turn_now, witnessed (what a witness claims, and nobody has settled yet),
and returns whether pool time is vouched for; is_late (the caller counts since before `begun`).

  raw is as the caller expects      it vouches: seen = now = raw
  raw is off                        a claim, if the caller has measured that between two answers; the same by
                                    another caller, or by the same one a period later, sets the offset

A caller that has counted since `seen` or longer is a witness: it knows how much time has passed since then.
Others (who has just come, or was contradicted) are believed while raw is where it may be; else they claim as
well, and for two periods any witness may say otherwise.  Then it is settled: `begun`, and who has counted since
before that is no witness any more (it was cut off all the while), or it would take pool time back, behind
what has been stored since.  Who is late expects too little, and claims nothing:
what it has measured has the round trips taken off.  A claim is for one offset, whose number is `turn`.
Who has come since is told what a witness claims and begins anew with that, so that of another step it measures
what that witness would, and of this one it confirms the claim.  What a witness has claimed that is heard no more stays in the claim of who came since, at
its end: of the two times that may be meant the one counts by which less has passed since `seen`.  So does what any
other has measured, where raw is behind `seen` and surely off.
A claim that began behind `seen` stays one when raw has passed that: then what was left counts.

The lease clock never jumps with pool time.  It stands still while nobody vouches, but leases are granted from
lease + window_ms then.  A witness that settles a step counts nothing; those who came since count window_ms, which
have passed since their claim: so leases of before the claim are granted from `lease`.
]]
local CLOCK_MS = 1000 -- less is no step
local CLAIM_PERIODS = 4 -- after so many somebody else may claim something else
local clock_had = redis.call('HMGET', lane, 'turn', 'claim', 'begun')
local turn_now, claim_had, begun = whole(clock_had[1]), clock_had[2], whole(clock_had[3])
local is_late = begun <= seen and since_ms > 0 and since_ms < begun
local witnessed

-- Who has measured a step knows more than who came behind it, and a witness more than both.
local function knowledge(kind, by)
  return kind == 'w' and 2 or by ~= 0 and 1 or 0
end

local function keep_time()
  local raw = math.floor(raw_us / 1000)
  local slack = CLOCK_MS + period_ms / 2
  local off = raw - expected_ms
  -- A lane that nobody has vouched for (somebody else was at it) begins with what its server says.
  local is_near = expected_ms > 0 and (seen == 0 or math.abs(off) <= slack)
  local is_witness = since_ms > 0 and since_ms <= seen and not is_late
  if is_near and (is_witness or not is_astray or seen == 0) then
    if claim_had then
      redis.call('HDEL', lane, 'claim')
    end
    now = seen > raw and seen - raw <= slack and seen or raw
    answered(now - seen)
    return true
  end
  local is_measured = off_ms ~= 0 and turn == turn_now and math.abs(off - off_ms) <= slack
  trim_leases()
  local had_kind, had_by, had_who, had_expected, had_raw, left =
    string.match(claim_had or '', '^([wn])|(-?%d+)|([^|]*)|(%d+)|(%d+)|(-?%d*)$')
  local is_old = false
  if had_kind then
    left = had_kind == 'w' and had_by or left
    had_by, had_expected, had_raw = tonumber(had_by), tonumber(had_expected), tonumber(had_raw)
    is_old = raw < had_raw or raw - had_raw > CLAIM_PERIODS * period_ms
    witnessed = had_kind == 'w' and not is_old and had_by or nil
  end
  if expected_ms == 0 or not (is_near or is_measured) then
    return
  end
  local kind, by = is_witness and 'w' or 'n', is_near and 0 or off_ms
  if had_kind then
    local knows, had_known = knowledge(kind, by), knowledge(had_kind, had_by)
    if is_old or knows > had_known then
      had_kind = nil
    elseif knows < had_known and (by == 0 or math.abs(by - had_by) > slack) then
      return
    end
    if by == 0 and had_by ~= 0 and left == '' and raw < seen then
      left = had_by -- what was stored meanwhile goes by that
    end
  end
  if tonumber(left) and math.abs(by - left) <= slack then
    left = nil -- it was told, and has measured it from there
  end
  local stood = now
  local is_same = had_kind and math.abs(by - had_by) <= slack
  local apart = had_kind and expected_ms - had_expected or 0
  if is_same and (kind == 'n' and apart >= 2 * period_ms or kind == 'w' and (who ~= had_who or apart >= 0.9 * period_ms)) then
    -- Where only who has come since can tell, pool time does not go back, nor behind what those who are gone
    -- have stored.
    now = raw - by
    local meant = kind == 'n' and tonumber(left) and now - tonumber(left) or now
    if meant >= seen and (meant < now or now < seen or is_off) then
      now = meant
    end
    if kind == 'n' and now < reached then
      now = reached + raw - had_raw
    end
    if kind == 'n' then
      redis.call('HSET', lane, 'begun', text_of(now))
    end
    offset = offset + now - raw
    if now ~= raw then
      turn_now = turn_now + 1
      redis.call('HSET', lane, 'offset', text_of(offset), 'turn', text_of(turn_now))
      if redis.call('ZSCORE', due, 's:') then
        redis.call('ZADD', due, now, 's:') -- schedules go by the server's own clock
      end
      journal_add(journal, 'clock', '', '', '', '', '', '', 'set by ' .. text_of(now - raw) .. ' ms')
    end
    redis.call('HDEL', lane, 'claim', 'reached')
    witnessed = nil
    settled(kind == 'n' and math.max(0, math.min(window_ms, raw - had_raw)) or 0, math.min(stood, now))
    raw_us = now * 1000
    return true
  elseif not is_same then
    local granted = text_of(lease + window_ms + ttl_ms)
    for _, name in ipairs(kind == 'n' and redis.call('ZRANGEBYSCORE', keepalive, granted, granted) or {}) do
      redis.call('ZADD', keepalive, lease + ttl_ms, name)
    end
    redis.call('HSET', lane, 'claim', table.concat({ kind, text_of(by), who, text_of(expected_ms), text_of(raw), left or '' }, '|'))
  end
end
