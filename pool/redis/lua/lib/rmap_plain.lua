--[[
rmap_plain: the usual write by itself: one string is set where there is one, in a map without an end.

Needs  keys config, data, log; arguments generation, nonce, life.
Does what the rest of the script would do, and tells it in one text; in all other cases it has done nothing.  It
takes a third of the server's time: most of the whole is the making of what a plain write does not need.
]]
do
  local key, value = ARGV[7], ARGV[8]
  if #ARGV == 8 and ARGV[6] == 'set' and life == '' and redis.call('HGET', config, 'incarnation') == generation then
    local had = redis.call('HMGET', data, 'at', '=' .. key)
    local from, number, stamp = string.match(had[1] or '', '^(%S+) (%d+) (%x+) 0$')
    if from == generation and #number <= 16 and #stamp <= 16 and had[2] then
      local after = number .. '-' .. stamp
      number, stamp = string.format('%d', number + 1), string.sub(redis.sha1hex(stamp .. nonce), 1, 16)
      local text = '+' .. #key .. ':' .. key .. #value .. ':' .. value
      local kept = #text <= 8092 and 1024 or math.max(1, math.floor(8388608 / (#text + 100)))
      local logged = redis.pcall('XADD', log, 'MAXLEN', '~', kept, number .. '-0', 'at',
        generation .. ' ' .. stamp .. ' ' .. after, 'edits', text)
      if type(logged) == 'string' then -- else nothing is written, and the rest says why or how
        redis.call('HSET', data, 'at', generation .. ' ' .. number .. ' ' .. stamp .. ' 0', '=' .. key, value)
        return number .. ' ' .. stamp .. ' ' .. had[2]
      end
    end
  end
end
