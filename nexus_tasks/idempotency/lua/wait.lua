-- wait: lets the claims of a run wait, because the run cannot go on now.
-- KEYS: the claims of the run.
-- ARGV: 1 the key prefix
--       2 the run's token
--       3 the wait reason
--       4 delay (ms)
--       5 a detail, which `nexus status` shows; for the reason `version` the worker's dialect of the kind
--       6 '1' when the run failed and is retried
--       7 '1' when the cause of the failure is unknown; then it counts against the job's attempts
--       8 the error's type and text, for people ('' for none)
-- The run's flags are merged into those of the next run. If a rerun was asked for, the next run serves its id too.
-- Returns {per claim 1 or 0, wake-ups to publish (see common.lua)}. 1: the claim waits. 0: the run has lost the claim
-- (its token is another one), and the claim has not changed.

local owned, wakeups, namespaces = {}, {}, {}
for i, key in ipairs(KEYS) do
  owned[i] = 0
  if field(key, 'token') == ARGV[2] then
    owned[i] = 1
    namespaces[field(key, 'namespace')] = true
    flags_from_run(key)
    if ARGV[6] == '1' then
      add_to(key, 'retries', 1)
      total('retries', field(key, 'kind'), 1)
      redis.call('HSETNX', key, 'failing_since', integer(now))
    else
      redis.call('HDEL', key, 'failing_since') -- the run did not fail, so the time of failing starts anew
    end
    if ARGV[8] == '' then redis.call('HDEL', key, 'error') else redis.call('HSET', key, 'error', ARGV[8]) end
    if ARGV[7] == '1' then add_to(key, 'errors', 1) end
    if ARGV[3] == 'version' then
      to_version(key, ARGV[5])
    else
      -- While the kind is paused, the claim has no due_at: the end of the pause wakes it.
      local lasts = ARGV[3] == 'pause' and is_paused(field(key, 'kind'))
      local delay = woken(key, ARGV[3]) and 0 or number(ARGV[4])
      to_waiting(key, ARGV[3], not lasts and now + delay, ARGV[5])
    end
  end
end
for namespace in pairs(namespaces) do fill_lines(namespace, wakeups) end
return { owned, wakeups }
