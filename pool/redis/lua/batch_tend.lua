--[[
batch_tend: seal a batch that its maker has left, forget one that is kept for long enough, and tell of members of one that
is sealed which have not ended; see lib/members.

KEYS[1] lane       hash    counters
KEYS[2] batches    zset    id -> when it was opened
KEYS[3] batch      hash    batch:ID
KEYS[4] due        zset    b:ID, o:LANE -> when
KEYS[5] payloads   hash    messages to lanes
KEYS[6] jobs       hash    of no batch; lib/batch names it
ARGV[1] generation  str
ARGV[2] id          str
ARGV[3] from        int   index from which on it tells of members
ARGV[4] hold_ms     int   > 0; by then the next one comes, if the caller does not
ARGV[5] check_ms    int   > 0; by then all are looked at again, when all have been
ARGV[6] members_max int   > 0; of how many it tells at most

Uses     lane, record, batch, (out), (channel), (members), (settle)
Returns  GONE | SETTLED | OPEN, or: nonce, state, cause, where to go on (-1: that was the end), what it says of waiters (see incoming), then
         index, key of each
Errors   POOLDATALOST <lane>
Cost     O(members_max + members / 512 + 16 * 512); 14 commands
Why Lua  its maker may come back at this moment, and its last member end.

    open, not yet     --> OPEN, due then
    open, it is time  --> sealed, as below
    sealed            --> due after hold_ms, or after check_ms where these are the last
    settled           --> SETTLED, due when it is forgotten; forgotten: GONE
]]
redis.call('ZCARD', due)
redis.call('ZCARD', batches)
redis.call('HLEN', payloads)
redis.call('ZREM', due, '\n') -- frees, so that a full server lets the rest pass
is_alone = true
local b = read_batch(batch, id)
local ends = b and (is_settled(b) and whole(b.settled) + b.keep or b.state == 'o' and b.sealed)
if not b or (is_settled(b) and ends <= now) then
  redis.call('ZREM', due, 'b:' .. id)
  tally('batches', -redis.call('ZREM', batches, id))
  if b then
    redis.call('UNLINK', batch)
  end
  close_lane()
  return 'GONE'
elseif ends and ends > now then
  redis.call('ZADD', due, text_of(ends), 'b:' .. id)
  return is_settled(b) and 'SETTLED' or 'OPEN'
elseif ends then
  b.state, b.sealed, b.cause, b.is_new = 's', now, 'its maker has left it open', true
end
local told = close_batches()
if is_settled(b) then
  close_lane()
  return { b.nonce, b.state, b.cause, '-1', told }
end
local answers = { b.nonce, b.state, b.cause, '-1', told }
local follows = open_members(b, from, members_max, answers)
answers[4] = text_of(follows)
redis.call('ZADD', due, text_of(now + (follows < 0 and b.state ~= 'x' and check_ms or hold_ms)), 'b:' .. id)
close_lane()
return answers
