--[[
rmap_plain: the usual write by itself: one string is set where there is one, in a map without an end.

Needs  keys config, data, log; arguments generation, nonce, ttl_ms.
Does what the rest of the script would do, and returns the same; in all other cases it has done nothing.  It
takes half of the server's time: most of the whole is the making of what a plain write does not need.
]]
do
  local key, value = ARGV[8], ARGV[9]
  if #ARGV == 9 and ARGV[7] == 'set' and ttl_ms == 0 and redis.call('HGET', config, 'incarnation') == generation then
    local had = redis.call('HMGET', data, 'at', '=' .. key)
    local from, number, stamp = string.match(had[1] or '', '^(%S+) (%d+) (%x+) 0$')
    if from == generation and #number <= 16 and #stamp <= 16 and had[2] then
      local after = number .. '-' .. stamp
      number, stamp = string.format('%.0f', number + 1), string.sub(redis.sha1hex(stamp .. nonce), 1, 16)
      local text = '+' .. #key .. ':' .. key .. #value .. ':' .. value
      local kept = math.max(1, math.min(1024, math.floor(8388608 / (#text + 100))))
      local logged = redis.pcall('XADD', log, 'MAXLEN', '~', kept, number .. '-0', 'incarnation', generation, 'stamp',
        stamp, 'after', after, 'edits', text)
      if type(logged) == 'string' then -- else nothing is written, and the rest says why or how
        redis.call('HSET', data, 'at', generation .. ' ' .. number .. ' ' .. stamp .. ' 0', '=' .. key, value)
        return { number, stamp, '1', had[2] }
      end
    end
  end
end
