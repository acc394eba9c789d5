--[[
limits: how many events a stream keeps, and how long it lives.  Needs  argument limits.

Gives  length_max, ttl_ms, flags.
]]
local length_max, ttl_ms, flags = 0, 0, ''
if limits ~= '' then
  length_max, ttl_ms, flags = string.match(limits, '^(%d+) (%d+) (%a*)$')
  length_max, ttl_ms = tonumber(length_max), tonumber(ttl_ms)
end
