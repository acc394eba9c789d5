--[[
walk: hold the walk over a lane's records for a while, and take its next slice.

KEYS[1] lane       hash    counters; walk: holder|until|cursor of what comes next; astray
KEYS[2] keepalive  zset    identity -> lease end
KEYS[3] cleanup    hash    identity -> claim
KEYS[4] open       hash    id -> number|takes|seq[|down]
KEYS[5] jobs       hash    key -> record
ARGV[1] generation  str
ARGV[2] holder       str   identity of the walker
ARGV[3] hold_ms      int   > 0; how long before somebody else may go on
ARGV[4] cursor       str   where the caller thinks that it stands; empty: it has not walked
ARGV[5] open_at      str   likewise in `open`; empty: it has been through that in this pass
ARGV[6] cleanup_at   str   likewise in `cleanup`
ARGV[7] keys_max     int   records, about
ARGV[8] names_max    int   identities, about, in each of the two
ARGV[9] found        int   records found astray since the pass began
ARGV[...] announced        id.n each of workers that the caller knows of

Uses     lane
Returns  server ms, how long another node holds it (ms; 0: it is ours); and if it is ours
         1 if it stood where the caller thinks, else 0; 1 if this slice is a pass's first; number of records; cursors of what comes next in
         `jobs`, `open` and `cleanup` (0: that was the end); records astray in the last pass, or in this one;
         unassigned; waiting; messages to lanes; batches; what has changed if a key began or ceased to wait since (see recount);
         identities that a deadline should be there for, and is not; key, record of each
Errors   POOLDATALOST <lane>
Cost     O(records + identities); 1 command an identity, 8 a call
Why Lua  SetIfNotExists with an expiry on the server's clock, and the slice that it is for: an idle pool is
         walked with one command.  Two walkers would be harmless, but wasteful.
]]
redis.call('HLEN', open)
redis.call('HLEN', cleanup)
redis.call('ZCARD', keepalive)
local records = redis.call('HLEN', jobs)
local fields = redis.call('HMGET', lane, 'walk', 'astray', 'retried', 'delayed', 'unknown', 'outgoing', 'batches')
local held_by, held_until, stands = string.match(fields[1] or '', '^(.*)|(%d+)|(%d+)$')
held_until = whole(held_until)
-- Later than any hold could end means that the clock went back: then it is nobody's.
if held_by and held_by ~= holder and held_until > now and held_until <= now + hold_ms then
  return { text_of(now), text_of(held_until - now) }
end
local is_continued = held_by == holder and stands == cursor
if not is_continued then
  cursor, open_at, cleanup_at = stands and #stands <= 20 and stands or '0', '0', '0'
end
redis.call('HDEL', lane, '\n') -- frees, so that a full server lets the rest pass
local slice = redis.call('HSCAN', jobs, cursor, 'COUNT', keys_max)
local function names_of(name, at)
  return at == '' and { '', {} } or redis.call('HSCAN', name, at, 'COUNT', names_max)
end
local next_open, next_cleanup = names_of(open, open_at), names_of(cleanup, cleanup_at)
redis.call('HSET', lane, 'walk', holder .. '|' .. text_of(now + hold_ms) .. '|' .. slice[1])
local astray = whole(fields[2])
if found > astray then
  astray = found
  redis.call('HSET', lane, 'astray', text_of(astray))
end

-- Whoever may be granted keys, or is being reaped or remembered, has a deadline in `keepalive`.
local suspects = {}
local function check(name)
  if not redis.call('ZSCORE', keepalive, name) then
    suspects[#suspects + 1] = name
  end
end
for i = 10, #ARGV do
  check(ARGV[i])
end
for i = 1, #next_open[2], 2 do
  local n = string.match(next_open[2][i + 1], '^(%d+)|')
  if n then
    check(next_open[2][i] .. '.' .. n)
  end
end
for i = 1, #next_cleanup[2], 2 do
  if next_cleanup[2][i] ~= 'sweeper' then
    check(next_cleanup[2][i])
  end
end
local changes = table.concat({ whole(lane_had[4]), whole(fields[3]), whole(fields[4]), whole(fields[5]) }, '|')
return { text_of(now), '0', is_continued and 1 or 0, cursor == '0' and 1 or 0, records, slice[1], next_open[1], next_cleanup[1], astray,
  whole(lane_had[3]), whole(lane_had[4]), whole(fields[6]), whole(fields[7]), changes, suspects, slice[2] }
