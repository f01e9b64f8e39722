-- sweep_leases: takes running claims away from runs whose process has died or hangs.
-- KEYS: none.
-- ARGV: 1 the key prefix
--       2 how many claims at the most
--       3 attempts before a job is dead
--       4 the sweep's own token
--       5 lease (ms)
--       6 in how many ms a returned job is due again
--       7 the first part of the tokens of a process that has died; '' for the claims whose lease has ended, because
--         their heartbeat has stopped
-- For each found claim the script counts a crash. A claim with attempts left then waits for the reason `crash`. The
-- sweep takes over a claim without attempts left: the claim gets the sweep's token and a new lease. Then the sweep
-- writes the claim's dead letter and ends the claim (finish.lua).
-- Returns {number of claims that wait again, fields of each claim without attempts left, wake-ups to publish}.

-- Returns running claims of a dead process. It reads all leases: they are as few as the jobs that run in all workers.
local function held_by(holder, most)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGE', prefix .. ':leases', 0, -1)) do
    if #found == most then break end
    if string.sub(field(key, 'token') or '', 1, #holder) == holder then table.insert(found, key) end
  end
  return found
end

local attempts, most, holder = number(ARGV[3]), number(ARGV[2]), ARGV[7]
local returned, dead, wakeups, namespaces = 0, {}, {}, {}
for _, key in ipairs(holder == '' and upto(prefix .. ':leases', 'running', now, most) or held_by(holder, most)) do
  local used = number(field(key, 'crashes')) + number(field(key, 'errors'))
  if used < attempts then -- otherwise an earlier sweep could not write the dead letter, and that is no crash
    used = used + 1
    add_to(key, 'crashes', 1)
    total('crashes', field(key, 'kind'), 1)
  end
  namespaces[field(key, 'namespace')] = true
  if used >= attempts then
    to_running(key, ARGV[4], number(ARGV[5]), false)
    table.insert(dead, redis.call('HGETALL', key))
  else
    flags_from_run(key)
    to_waiting(key, 'crash', now + number(ARGV[6]), '')
    returned = returned + 1
  end
end
for namespace in pairs(namespaces) do fill_lines(namespace, wakeups) end
return { returned, dead, wakeups }
