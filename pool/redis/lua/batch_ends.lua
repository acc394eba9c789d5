--[[
batch_ends: count members of a batch that were never accepted, or whose end was lost on its way; see lib/members.

KEYS[1] lane       hash    counters
KEYS[2] batch      hash    batch:ID
KEYS[3] due        zset    b:ID, o:LANE -> when
KEYS[4] payloads   hash    messages to lanes
KEYS[5] jobs       hash    of no batch; lib/batch names it
ARGV[1] generation  str
ARGV[2] id          str
ARGV[3] nonce       str   of the batch
ARGV[...] items           index, letter each: s f c m

Uses     lane, record, batch, (out), (channel), (members), (settle)
Returns  OK <as incoming says> | GONE (it is forgotten, or is another one)
Errors   POOLDATALOST <lane>
Cost     O(items + followers); 12 commands, 4 for each 512 members
Why Lua  each is counted once, whoever else tells of it.
]]
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
is_alone = true
local b = read_batch(batch, id)
if not b or b.nonce ~= nonce then
  return 'GONE'
end
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass
for a = 4, #ARGV, 2 do
  end_member(b, tonumber(ARGV[a]), ARGV[a + 1])
end
local told = close_batches()
close_lane()
return 'OK' .. told
