--[[
list_plain: the usual append by itself: of one value, to a list or to no key, in a map without an end.

Needs  keys config, data, lists, log; arguments generation, nonce, items_max, life, op, key.
Does what the rest of the script would do, as rmap_plain does; see lib/rmap for what an item is.
]]
do
  local value = ARGV[8]
  if #ARGV == 8 and op == 'append' and life == '' and redis.call('HGET', config, 'incarnation') == generation then
    local had = redis.call('HMGET', data, 'at', '=' .. key)
    local from, number, stamp = string.match(had[1] or '', '^(%S+) (%d+) (%x+) 0$')
    if from == generation and #number <= 16 and #stamp <= 16 and not had[2] then
      local head = #key .. ':' .. key
      local size = redis.call('ZLEXCOUNT', lists, '[l' .. head, '(l' .. head .. ':')
      local count = redis.call('HLEN', data) - 1 + redis.call('ZCARD', lists) / 2
      if count < tonumber(items_max) then
        local after = number .. '-' .. stamp
        number, stamp = string.format('%d', number + 1), string.sub(redis.sha1hex(stamp .. nonce), 1, 16)
        local text = 'a' .. head .. #value .. ':' .. value
        local kept = #text <= 8092 and 1024 or math.max(1, math.floor(8388608 / (#text + 100)))
        local logged = redis.pcall('XADD', log, 'MAXLEN', '~', kept, number .. '-0', 'at',
          generation .. ' ' .. stamp .. ' ' .. after, 'edits', text)
        if type(logged) == 'string' then -- else nothing is written, and the rest says why or how
          redis.call('HSET', data, 'at', generation .. ' ' .. number .. ' ' .. stamp .. ' 0')
          local digits = string.format('%016d000', number)
          local hash = string.sub(redis.sha1hex(value), 1, 16)
          redis.call('ZADD', lists, 0, 'l' .. head .. digits .. value, 0, 'i' .. head .. hash .. digits)
          return string.format('%s %s %d %d', number, stamp, size, size + 1)
        end
      end
    end
  end
end
