-- sweep_due: waiting claims whose time has come. ARGV: 2 how many at the most. Returns wake-ups to publish.

local wakeups = {}
for _, key in ipairs(upto(prefix .. ':due', 'waiting', now, ARGV[2])) do table.insert(wakeups, to_pending(key)) end
return wakeups
