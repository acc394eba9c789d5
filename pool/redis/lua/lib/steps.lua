--[[
steps: what the steps of a job returned, in `checkpoints` beside the states.

Needs  lane, record, batch; keys jobs, checkpoints.  Gives  steps_name(key), letters_steps(pair),
store_step(key, r, name, result), park_steps(key, pair).

    NAME\nBYTES\nRESULT...  one after another, in the order in which they were stored: name, size, and so much of it

They stand behind a line feed and the key, and behind two with the dead letter of a parked job, for as long as
that is there: no job's key begins so.  A full server takes them: they are few, and what they tell of has happened.
Read in core/record.py, too.
]]
local function steps_name(key)
  return '\n' .. key
end

local function letters_steps(pair)
  return '\n\n' .. pair
end

local function park_steps(key, pair)
  local steps = redis.call('HGET', checkpoints, steps_name(key))
  if steps then
    redis.call('HSET', checkpoints, letters_steps(pair), steps)
  end
end

local function store_step(key, r, name, result)
  local field = steps_name(key)
  local steps, at = has(r, 's') and redis.call('HGET', checkpoints, field) or '', 1
  while at <= #steps do
    local had, size, from = string.match(steps, '^([^\n]+)\n(%d+)\n()', at)
    at = had and from + whole(size)
    if not had or at > #steps + 1 then
      return 'MALFORMED'
    end
    if had == name then
      local stands = string.sub(steps, from, at - 1)
      return stands == result and 'OK' or 'STANDS ' .. stands
    end
  end
  redis.call('HSET', checkpoints, field, table.concat({ steps, name, '\n', #result, '\n', result }))
  if not has(r, 's') then
    flag(r, 's', true)
    later('HSET', jobs, key, pack(r))
  end
  return 'OK'
end
