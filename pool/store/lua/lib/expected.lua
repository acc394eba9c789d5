--[[
expected: who stores deadlines says what pool time it expects, for when nobody has vouched for the server's.

Needs  lane; argument expected_ms (0: the caller does not know).
What its caller believes in is its last answer and how long ago that was by its own clock.  It counts only
where raw is astray, and never before what was vouched for.  Below 0: the caller has come since, and all that
it knows is raw, which is right if the pool stood empty; so it counts until a witness has claimed something else.
]]
if is_astray and (expected_ms > 0 or (expected_ms < 0 and not string.find(lane_had[8] or '', '%d$'))) then
  now = math.max(math.abs(expected_ms), seen)
  now_us = now * 1000
end
