-- cap: sets how many runs a namespace may have at a time, because an operator pauses it or ends its pause.
-- KEYS: none. ARGV: 1 the key prefix, 2 the namespace, 3 the number of runs, 0 while the namespace is paused.
-- With a cap of 0 no claim leaves the namespace's lines (see common.lua). A higher cap lets claims leave them at once.
-- Returns wake-ups to publish (see common.lua).

local wakeups = {}
set_cap(ARGV[2], number(ARGV[3]))
fill_lines(ARGV[2], wakeups)
return wakeups
