-- cap: an operator pauses a namespace, or ends its pause.
-- KEYS: none. ARGV: 1 the key prefix, 2 the namespace, 3 how many runs it may have at a time, 0 while it is paused.
-- With a cap of 0 no claim leaves the namespace's lines (see common.lua). A higher cap fills them.
-- Returns wake-ups to publish (see common.lua).

local wakeups = {}
set_cap(ARGV[2], number(ARGV[3]))
fill_lines(ARGV[2], wakeups)
return wakeups
