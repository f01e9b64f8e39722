-- sweep_due: makes waiting claims pending when they are due.
-- KEYS: none. ARGV: 1 the key prefix, 2 how many claims at the most.
-- Returns wake-ups to publish (see common.lua), none when no claim is due.

local wakeups = {}
for _, key in ipairs(upto(prefix .. ':due', 'waiting', now, ARGV[2])) do table.insert(wakeups, to_pending(key)) end
return wakeups
