--[[
settle: how members of batches have ended, and what comes of it when they all have; see members.

Needs  lane, record, batch, channel, members; key due.
Gives  end_member(b, index, word), close_batches(): what is to be told.

The step that counts the last one settles the batch, if it is sealed; else the one that seals it does.  What follows it, and
the batch that it is a member of, get their messages in that step.
]]
local function end_member(b, index, word)
  local k = math.floor(index / CHUNK)
  local words, field = part_of(b, 'w', k)
  local at = index - k * CHUNK + 1
  if index >= b.members or string.sub(words, at, at) ~= '.' then
    return
  end
  b.texts[field] = string.sub(words, 1, at - 1) .. word .. string.sub(words, at + 1)
  local order, order_field = part_of(b, 'e', math.floor(ended_of(b) / CHUNK))
  b.texts[order_field] = order .. (order ~= '' and ' ' or '') .. text_of(index)
  b[word] = b[word] + 1
  b.is_new = true
end

-- What it has to say to those that follow it, and to the batch that it is a member of: whether there are any.
local function settle(b)
  local least = b.least == '' and b.members or whole(b.least)
  b.state = b.state == 'x' and 'c' or b.s >= least and 'd' or 'f'
  b.settled = text_of(now)
  redis.call('ZADD', due, text_of(now + b.keep), 'b:' .. b.id)
  local counts = string.format('{"expected":%d,"succeeded":%d,"failed":%d,"cancelled":%d,"missing":%d}', b.members, b.s, b.f, b.c, b.m)
  local told = string.format('%d of %d succeeded', b.s, b.members) .. (b.cause ~= '' and ', ' .. b.cause or '')
  local has_next = b.parent and true or false
  if b.followers ~= '' then
    local r = new_record('j', b.nonce, '-')
    has_next = release(b.nonce .. ' ' .. b.id, r, b.state == 'd' and 'done' or b.state == 'f' and 'failed' or 'cancelled', told, counts, b.followers) or has_next
    redis.call('HSET', b.name, 'then', more_of(r[MORE], 'f') or '')
  end
  if b.parent then
    tell_batch(b.parent, b.state == 'd' and 's' or b.state)
  end
  return has_next
end

-- What is to be told of batches in which something has changed: 1 if there are messages to lanes, else 0; then who waits
-- for which.
local function close_batches()
  local told, has_due = '', '0'
  for name, b in pairs(read_so_far()) do
    if b and b.is_new then
      if (b.state == 's' or b.state == 'x') and ended_of(b) >= b.members then
        has_due = settle(b) and '1' or has_due
      end
      local words = { 'head', head_of(b) }
      for field, text in pairs(b.texts) do
        words[#words + 1] = field
        words[#words + 1] = text
      end
      for i = 1, #words, ARGS_MAX do
        redis.call('HSET', name, unpack(words, i, math.min(i + ARGS_MAX - 1, #words)))
      end
      if b.waiters ~= '' then
        told = told .. ' ' .. b.waiters .. ' ' .. b.id
      end
    end
  end
  return ' ' .. has_due .. told
end
