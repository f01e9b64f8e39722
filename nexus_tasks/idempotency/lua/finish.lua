-- finish: ends the run of claims. The job is done, or its dead letter is committed and its status is `dead`.
-- KEYS: the claims of the run, the primary first. ARGV: 1 the key prefix, 2 the run's token, 3 the canvas delivery that
-- the caller completes itself ('' for none), 4.. the status of each claim.
-- Returns {per claim 1 or 0, wake-ups to publish (see common.lua)}. 1: the run of the claim has ended. 0: the run has
-- lost the claim (its token is another one), and the claim has not changed.

local owned, wakeups, namespaces = {}, {}, {}
for i, key in ipairs(KEYS) do
  owned[i] = 0
  if field(key, 'token') == ARGV[2] then
    owned[i] = 1
    namespaces[field(key, 'namespace')] = true
    conclude(key, ARGV[i + 3], wakeups, ARGV[3])
  end
end
for namespace in pairs(namespaces) do fill_lines(namespace, wakeups) end
return { owned, wakeups }
