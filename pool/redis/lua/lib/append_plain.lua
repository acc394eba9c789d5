--[[
append_plain: the usual event by itself: of a stream that is there, without an end, from which no cap takes any.

Needs  limits; keys events, meta; arguments event, payload, mark, topic.
Gives  n: the number that it was given, where it was not added; append(n) goes on from there.

It takes four fifths of the server's time: the rest of the whole is the making of what a plain event does not need.
]]
local n
if ttl_ms == 0 then
  n = redis.pcall('HINCRBY', meta, 'n', 1)
  if type(n) == 'number' and (length_max == 0 or n <= length_max) then
    local id, number = nil, string.format('%d', n)
    if topic ~= '' then
      id = redis.pcall('XADD', events, 'NOMKSTREAM', '*', 'n', number, 'm', mark, 'e', event, 'p', payload,
        't', string.sub(topic, 2))
    else
      id = redis.pcall('XADD', events, 'NOMKSTREAM', '*', 'n', number, 'm', mark, 'e', event, 'p', payload)
    end
    if type(id) == 'string' then
      return id
    end
  end
end
