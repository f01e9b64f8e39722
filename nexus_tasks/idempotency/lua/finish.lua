-- finish: a run has ended, well or (status `dead`, after its dead letter is committed) for good. KEYS: its claims, the
-- lead first. ARGV: 2 token, 3 the canvas delivery that the caller completes itself ('' for none), 4.. the status of each.
-- Returns {per claim 1, or 0 where it was no longer this run's (nothing changed), wake-ups to publish}.

local owned, wakeups = {}, {}
for i, key in ipairs(KEYS) do
  owned[i] = 0
  if field(key, 'token') == ARGV[2] then
    owned[i] = 1
    local namespace, slot = field(key, 'namespace'), field(key, 'slot')
    conclude(key, ARGV[i + 3], wakeups, ARGV[3])
    if slot then next_in_line(namespace, wakeups) end
  end
end
return { owned, wakeups }
