--[[
out: the messages of this lane to another, as they stand in `payloads`; see channel.

Needs  lane; key payloads.
Gives  read_out(to): first, next, root, tail; out_head(out): its text, out_message(to, n): the name of message n.
]]
local function read_out(to)
  local first, next_, root, tail =
    string.match(redis.call('HGET', payloads, '\r' .. to) or '', '^(%d+) (%d+) (%S+) (%S+)$')
  return { first = whole(first), next = whole(next_), root = root or '-', tail = tail or '-' }
end

local function out_head(out)
  return table.concat({ text_of(out.first), text_of(out.next), out.root, out.tail }, ' ')
end

local function out_message(to, n)
  return '\r' .. to .. ' ' .. text_of(n)
end
