--[[
batch_seal: seal a batch: it has all its members; or have it cancelled.  See lib/members.

KEYS[1] lane       hash    counters
KEYS[2] batch      hash    batch:ID
KEYS[3] due        zset    b:ID, o:LANE -> when
KEYS[4] payloads   hash    messages to lanes
KEYS[5] jobs       hash    of no batch; lib/batch names it
ARGV[1] generation  str
ARGV[2] id          str
ARGV[3] nonce       str   of the batch; empty: whichever there is
ARGV[4] members     int   how many its maker has added; or -1: it is to be cancelled
ARGV[5] cause       str   of that
ARGV[6] check_ms    int   > 0; when somebody looks for members that were lost

Uses     lane, record, batch, (out), (channel), (members), (settle)
Returns  OK <as incoming says> | SETTLED (it has) | SEALED <members> (others have sealed it, with fewer) | GONE (it is forgotten,
         or is another one)
Errors   POOLDATALOST <lane>
Cost     O(followers); 12 commands
Why Lua  the last member may end at this moment: one of the two steps settles it.
]]
redis.call('ZCARD', due)
redis.call('HLEN', payloads)
is_alone = true
local b = read_batch(batch, id)
if not b or (nonce ~= '' and b.nonce ~= nonce) then
  return 'GONE'
end
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass
if members < 0 then
  if is_settled(b) then
    return 'SETTLED'
  elseif b.state ~= 'x' then
    if b.state == 'o' then
      b.sealed = now
    end
    b.state, b.cause, b.is_new = 'x', plain(cause), true
    redis.call('ZADD', due, text_of(now), 'b:' .. id)
  end
elseif b.state == 'o' then
  b.state, b.sealed, b.is_new = 's', now, true
  redis.call('ZADD', due, text_of(now + check_ms), 'b:' .. id)
elseif members > b.members then
  return 'SEALED ' .. text_of(b.members)
end
local told = close_batches()
close_lane()
return 'OK' .. told
