--[[
record: a job's record, one line of fields between bars; a field that is empty has its default.  Its fields
and limits stand in core/record.py, too; a test holds the two together.

 1 state P R W U Q 2 kind j s     3 job id       4 handler     5 owner id.n, or none
 6 epoch           7 attempt      8 flags        9 intent     10 marks
11 requeues       12 accepted    13 since       14 waiters    15 last error
16 more           17 whatever a newer version wrote behind it, kept as it is

state     P pending (in the owner's stream, entry id = epoch), R running, W waiting, U unassigned,
          Q queued behind the live job of its key: see lib/queue.lua for where such a record stands
flags     p payload stays in `payloads`, b has a checkpoint, i has an inbox, d has a `due` entry,
          s has steps, r its last run may have ended without handing over,
          a must be acknowledged before its handler starts; if it has marks, it is begun alone
          n somebody may be queued behind it
          h held: parked as poison when it comes due, if the evidence still says so
intent    s<cause> stop was asked for, t timed out
accepted  acceptance stamp in microseconds; empty: the epoch of the first grant is it
marks     the deaths that it is suspected of, and what they prove: see core/crash_marks.py
since     ms when it was acknowledged running; of one that waits or is queued, when it is due
more      what hardly any job has: a letter and its value each, commas between (core/record.py says which)
]]
local STATE, KIND, ID, HANDLER, OWNER, EPOCH, ATTEMPT, FLAGS = 1, 2, 3, 4, 5, 6, 7, 8
local INTENT, MARKS, REQUEUES, ACCEPTED, SINCE, WAITERS, ERROR, MORE, REST = 9, 10, 11, 12, 13, 14, 15, 16, 17
local RECORD = '^([PRWUQ])|([js])|([^|]+)|([^|]+)|([^|]*)|([1-9]%d*)|(%d+)|(%l*)|([^|]*)|([%w.,-]*)|(%d*)|(%d*)|(%d*)|([^|]*)|([^|]*)|([^|]*)(.*)$'

local INLINE_BYTES_MAX = 1024 -- of a payload, a message or an outcome that travels with what announces it
local MARKS_CHARS_MAX = 400
local DIGITS_MAX = 16 -- more is not exact in Lua, and past 20 Redis refuses it as an entry id

local function parse(text)
  local r = { string.match(text or '', RECORD) }
  local has_owner = r[1] == 'P' or r[1] == 'R'
  if r[1] and math.max(#r[EPOCH], #r[ATTEMPT], #r[REQUEUES], #r[ACCEPTED], #r[SINCE]) <= DIGITS_MAX
    and #r[MARKS] <= MARKS_CHARS_MAX and has_owner == (r[OWNER] ~= '') then
    return r
  end
end

-- One of a job that nobody has, field by field.
local function new_record(kind, id, handler)
  return { 'U', kind, id, handler, '', '0', '1', '', '', '', '', '', '', '', '', '', '' }
end

local function pack(r)
  return table.concat(r, '|', 1, REST - 1) .. r[REST]
end

local function has(r, flag)
  return r[FLAGS] ~= '' and string.find(r[FLAGS], flag, 1, true) ~= nil
end

local function flag(r, letter, on)
  if on and not has(r, letter) then
    r[FLAGS] = r[FLAGS] .. letter
  elseif not on then
    r[FLAGS] = string.gsub(r[FLAGS], letter, '')
  end
end

-- What `more` has behind a letter, or nil.
local function more_of(more, letter)
  return more ~= '' and string.match(',' .. more, ',' .. letter .. '([^,]*)') or nil
end

-- The same with another value; nil takes the letter out.
local function with_more(more, letter, value)
  local rest = more ~= '' and string.gsub(',' .. more, ',' .. letter .. '[^,]*', '') or ''
  return string.sub(rest .. (value and ',' .. letter .. value or ''), 2)
end

-- What people wrote (a cause, an error) must not look like a field or a line of ours.
local function plain(text)
  return text == '' and text or (string.gsub(text, '[|%c]', ' '))
end

local function accepted_of(r)
  return r[ACCEPTED] ~= '' and r[ACCEPTED] or r[EPOCH]
end
