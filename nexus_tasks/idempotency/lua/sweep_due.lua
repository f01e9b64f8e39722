-- sweep_due: makes waiting claims pending whose time has come.
-- KEYS: none. ARGV: 2 how many at the most.
-- Returns wake-ups to publish, none when no claim is due.

local wakeups = {}
for _, key in ipairs(upto(prefix .. ':due', 'waiting', now, ARGV[2])) do table.insert(wakeups, to_pending(key)) end
return wakeups
