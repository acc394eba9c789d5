--[[
expected: who stores deadlines says what pool time it expects, for when nobody has vouched for the server's.

Needs  lane; argument expected_ms (0: the caller does not know).
What its caller believes in is its last answer and how long ago that was by its own clock.  Only where raw is
astray, and never before what was vouched for.
]]
if is_astray and expected_ms > 0 then
  now = math.max(expected_ms, seen)
  now_us = now * 1000
end
