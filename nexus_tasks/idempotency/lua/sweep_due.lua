-- sweep_due: waiting claims whose time has come. ARGV: 2 how many at the most. Returns wake-ups to publish.

local wakeups = {}
for _, key in ipairs(redis.call('ZRANGE', prefix .. ':due', '-inf', integer(now), 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  table.insert(wakeups, to_pending(key))
end
return wakeups
