-- sweep_leases: running claims whose heartbeat has stopped. ARGV: 2 how many at the most, 3 attempts before a job is
-- dead, 4 a token of the sweep's own, 5 lease (ms), 6 in how long a job is due again (ms).
-- Each crash counts. One that has used up its attempts is taken over by the sweep,
-- which writes the dead letter and then fails it.
-- Returns {number of claims returned to the queue, fields of the claims that have used up their attempts, wake-ups}.

local attempts = number(ARGV[3])
local returned, dead, wakeups = 0, {}, {}
for _, key in ipairs(upto(prefix .. ':leases', 'running', now, ARGV[2])) do
  local used = number(field(key, 'crashes')) + number(field(key, 'errors'))
  if used < attempts then -- else it was the sweep that could not bury it: no further crash
    used = used + 1
    redis.call('HINCRBY', key, 'crashes', 1)
  end
  local namespace, slot = field(key, 'namespace'), field(key, 'slot')
  if used >= attempts then
    to_running(key, ARGV[4], number(ARGV[5]), false)
    table.insert(dead, redis.call('HGETALL', key))
  else
    flags_from_run(key)
    to_waiting(key, 'crash', now + number(ARGV[6]), '')
    returned = returned + 1
  end
  if slot then next_in_line(namespace, wakeups) end
end
return { returned, dead, wakeups }
