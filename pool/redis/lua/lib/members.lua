--[[
members: a batch, and what has become of its members.

Needs  lane.
Gives  read_batch(name, id): the one that stands there, or nil; read_so_far(); head_of(b), is_settled(b), ended_of(b);
       part_of(b, letter, k): its text, and the name of its field; open_members(b, from, most, answers): where to go on.

A batch is one hash, `batch:ID`, in the lane of its id:

    head      NONCE|STATE|members|succeeded|failed|cancelled|missing|MIN|created|sealed|settled|KEEP|OPEN|CAUSE, times in ms;
              sealed: while it is open, when it is to be sealed at the latest; MIN: how many must succeed, empty: all
    n:K       the members from 512 K on, line ends between: its key, a tab, and a digest of handler and payload each; of one
              that is a batch its id, behind a "\b"
    w:K       a letter for each: . it has not ended; s succeeded, f failed, c cancelled, m missing
    e:K       members in the order in which they ended, from the 512 K-th on: spaces between
    then      its followers, see channel; when it has settled, the names of those that were released
    parent    INDEX/LANE/NONCE/ID of the batch whose member it is
    waiters   nodes that are told what goes on, commas between

STATE  o open, s sealed, x sealed and being cancelled; settled: d done, f failed, c cancelled
`due`  b:ID   open: when it is to be sealed; sealed: when somebody is to look for members that were lost; settled: when
       it is forgotten

A member is a job that has INDEX/LANE/NONCE/ID in `more`; the step that ends it writes to the batch's lane
`e INDEX NONCE WORD\nID`.  The letter is looked at first: whatever is told twice, or late, counts once; the nonce keeps it
from a later batch of that id.  See settle for what comes of the last one.
]]
local CHUNK = 512
local CHUNKS_MAX = 16 -- of those whose keys one call reads: as a whole, for members that end in any order
local MEMBER_KEY = '([^\t\n]+)[^\n]*' -- of a member in `n:K`
local HEAD = '^([^|]+)|(%l)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d*)|(%d+)|(%d+)|(%d*)|(%d+)|(%d+)|(.*)$'
local held = {} -- name -> batch

local function read_batch(name, id)
  if held[name] == nil then
    local had = fits(name, 'hash') and redis.call('HMGET', name, 'head', 'then', 'parent', 'waiters') or {}
    local nonce, state, members, s, f, c, m, least, created, sealed, settled, keep, open, cause = string.match(had[1] or '', HEAD)
    held[name] = nonce and {
      name = name, id = id, nonce = nonce, state = state, members = whole(members),
      s = whole(s), f = whole(f), c = whole(c), m = whole(m), least = least,
      created = created, sealed = whole(sealed), settled = settled, keep = whole(keep), open = whole(open), cause = cause,
      followers = had[2] or '', parent = had[3], waiters = had[4] or '', texts = {}, is_new = false,
    } or false
  end
  return held[name] or nil
end

-- Those that this call has read, by their names.
local function read_so_far()
  return held
end

local function head_of(b)
  return table.concat({ b.nonce, b.state, text_of(b.members), text_of(b.s), text_of(b.f), text_of(b.c), text_of(b.m), b.least,
    b.created, text_of(b.sealed), b.settled, text_of(b.keep), text_of(b.open), b.cause }, '|')
end

local function is_settled(b)
  return b.settled ~= ''
end

local function ended_of(b)
  return b.s + b.f + b.c + b.m
end

-- A part of it, as this call has made it.
local function part_of(b, letter, k)
  local field = letter .. ':' .. text_of(k)
  if not b.texts[field] then
    b.texts[field] = redis.call('HGET', b.name, field) or ''
  end
  return b.texts[field], field
end

-- Index and key of members that have not ended, at most so many; where to go on, or -1.
local function open_members(b, from, most, answers)
  local index, found, chunks = from, 0, 0
  while index < b.members do
    local k = math.floor(index / CHUNK)
    local words, keys, n = part_of(b, 'w', k), nil, k * CHUNK
    if string.find(words, '.', index - n + 1, true) then
      if chunks == CHUNKS_MAX then
        return index
      end
      keys, chunks = part_of(b, 'n', k), chunks + 1
      for key in string.gmatch(keys, MEMBER_KEY) do
        if n >= index and string.sub(words, n - k * CHUNK + 1, n - k * CHUNK + 1) == '.' then
          if found >= most then
            return n
          end
          answers[#answers + 1] = text_of(n)
          answers[#answers + 1] = key
          found = found + 1
        end
        n = n + 1
      end
    end
    index = (k + 1) * CHUNK
  end
  return -1
end
