--[[
stream_add: append an event to a stream; its length cap and its end are kept in the same step.

KEYS[1] events  stream  n number, m mark, e event, p payload, t topic (if it has one) per event
KEYS[2] meta    hash    n: events ever added; trimmed: the newest id that a cap took; missed:GROUP: all|from|count: how
                        many of those the group had not been given; of them so many, since the group's cursor was there, with
                        numbers from there on; born: which life it is; planned: 1 if the end of the last one was asked for
ARGV[1] event       bytes
ARGV[2] payload     bytes
ARGV[3] mark        str    drawn for this call: it tells the event from another of its id and number, after a fork
ARGV[4] topic       bytes  '': none; else = and the topic
ARGV[5] limits      str    '': none; else length_max ttl_ms flags, with spaces between: events kept, 0 all; how long the
                           stream lives, or with a when it ends, 0 for ever; s: every event prolongs its life; a: ttl_ms
                           is an epoch time; x: only if the stream exists

Uses     limits, append_plain, ends, append
Returns  bytes   the event's id; nil: there is no stream, and x was asked, or its end has passed
Errors   OOM        the server is full; nothing was written
         WRONGTYPE  foreign data under one of the keys
Cost     O(1); 2 commands, 1 more with an end; 5 more where a cap takes an event, of which it reads the body,
         and O(groups) then; 4 more where the stream is made
Why Lua  number and event are one step, so that a reader sees by the numbers what it has missed; a cap
         that takes what a group was not given yet says so to that group.
]]
return append(n)
