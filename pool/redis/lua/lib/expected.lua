--[[
expected: who stores deadlines says what pool time it expects, for when nobody has vouched for the server's.

Needs  lane; key lane; argument expects.
`expects` is ms of pool time, 0 if the caller does not know; and for who came to a clock that nobody had vouched for
|offset|turn|age: by which offset that holds, its number, and how many ms ago at most it was answered last.
It counts only where raw is astray, and never before what was vouched for.  What who was there believes in is
noted with what is stored by it (`reached`): pool time is not to go on from before that.

  who was there                    its last answer, and how long ago that was by its own clock
  who has come since               what TIME said then, by which raw is right if the pool stood empty
  ... and a claim stands           what will be set if nobody says otherwise (see clock)
  ... and was told it              what it holds has that in it already
  ... and others have set raw      if for steps of before it came, that goes on top; but not if for those of
      right, unheard               since then, or of which it was told.  Of the two times that may be meant the
                                   one counts by which less has passed since `seen`; and since then no more has
                                   passed than since its last answer
]]
if is_astray and expects ~= '0' then
  local expected, of_offset, of_turn, age_ms = string.match(expects, '^(%d+)|?(-?%d*)|?(%d*)|?(%d*)$')
  now = tonumber(expected)
  if of_offset ~= '' then
    local beyond = offset - tonumber(of_offset)
    local is_unheard = whole(redis.call('HGET', lane, 'turn')) ~= tonumber(of_turn)
    if is_unheard then
      local meant, from = now + beyond, seen - 1000 - period_ms / 2 -- what is told and measured is not exact
      if now < from or (meant >= from and meant < now) then
        now = meant
      end
      now = math.min(now, seen + tonumber(age_ms))
    end
    local kind, by, had_raw, left =
      string.match(lane_had[8] or '', '^([wn])|(-?%d+)|[^|]*|%d+|(%d+)|(-?%d*)$')
    if kind and #by <= 14 and #left <= 14 then
      local age = math.floor(raw_us / 1000) - whole(had_raw)
      local has_it = is_unheard or beyond ~= 0
      if age < 0 or age > 4 * period_ms then
        local is_left = kind == 'w' or left == '' and raw_us < seen * 1000 -- by who is gone, as in clock
        left = is_left and by or left -- the clock may have stepped since
      elseif tonumber(by) ~= 0 then
        now = math.floor(raw_us / 1000) - tonumber(by)
        has_it = false
      end
      local meant = now - (tonumber(left) or 0)
      if not has_it and meant >= seen and (meant < now or now < seen or is_off) then
        now = meant
      end
      if now < reached and age >= 0 then
        now = reached + math.min(age, 4 * period_ms) -- an older claim says nothing of what has passed: see CLAIM_PERIODS
      end
    end
  end
  now = math.max(now, seen)
  if of_offset == '' then
    reached = math.max(reached, now)
  end
  now_us = now * 1000
  at_once = math.min(at_once, now)
end
