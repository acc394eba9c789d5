--[[
expected: who stores deadlines says what pool time it expects, for when nobody has vouched for the server's.

Needs  lane; argument expected_ms (0: the caller does not know).
What its caller believes in is its last answer and how long ago that was by its own clock.  It counts only
where raw is astray, and never before what was vouched for.  Below 0: the caller has come since, and all that
it knows is what TIME should be, by which raw is right if the pool stood empty; so it counts until somebody has
claimed something, and then what will be set if nobody says otherwise (see clock).  What others believe in is
noted with what is stored by it (`reached`): pool time is not to go on from before that.
]]
if is_astray and expected_ms ~= 0 then
  now = expected_ms > 0 and expected_ms or offset - expected_ms
  local kind, by, had_raw, left =
    string.match(expected_ms < 0 and lane_had[8] or '', '^([wn])|(-?%d+)|[^|]*|%d+|(%d+)|(-?%d*)$')
  if kind and #by <= 14 and #left <= 14 then
    local age = math.floor(raw_us / 1000) - whole(had_raw)
    if age < 0 or age > 4 * period_ms then
      left = kind == 'w' and by or left -- the clock may have stepped since
    elseif tonumber(by) ~= 0 then
      now = math.floor(raw_us / 1000) - tonumber(by)
    end
    local meant = now - (tonumber(left) or 0)
    if meant >= seen and (meant < now or now < seen) then
      now = meant
    end
    if now < reached and age >= 0 then
      now = reached + age
    end
  end
  now = math.max(now, seen)
  if expected_ms > 0 then
    reached = math.max(reached, now)
  end
  now_us = now * 1000
end
