-- wait: a run cannot go on now. KEYS: its claims. ARGV: 2 token, 3 reason, 4 delay (ms), 5 detail for people,
-- 6 '1' when this was a failed attempt that will be retried, 7 '1' when its error was an unknown one.
-- Flags go back to the next run, a pending rerun folds in.
-- Returns {per claim 1, or 0 where it was no longer this run's (nothing changed), wake-ups to publish}.

local owned, wakeups = {}, {}
for i, key in ipairs(KEYS) do
  owned[i] = 0
  if field(key, 'token') == ARGV[2] then
    owned[i] = 1
    local namespace, slot = field(key, 'namespace'), field(key, 'slot')
    flags_from_run(key)
    if ARGV[6] == '1' then
      redis.call('HINCRBY', key, 'retries', 1)
      redis.call('HSETNX', key, 'failing_since', integer(now))
    else
      redis.call('HDEL', key, 'failing_since') -- whatever failed has passed: this wait has another reason
    end
    if ARGV[7] == '1' then redis.call('HINCRBY', key, 'errors', 1) end
    to_waiting(key, ARGV[3], now + number(ARGV[4]), ARGV[5])
    if slot then next_in_line(namespace, wakeups) end
  end
end
return { owned, wakeups }
