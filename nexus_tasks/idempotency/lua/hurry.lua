-- hurry: makes claims pending now that wait for the given reason.
-- KEYS: the claims. ARGV: 1 the key prefix, 2 the reason.
-- Without KEYS, the claims are those that have waited longest for the reason. Then ARGV also has 3 the namespace (for
-- the reason `pause` the kind) of the claims, 4 how many claims at the most.
-- A claim that waits for another reason goes on waiting, so a back-off is never cut short.
-- Returns wake-ups to publish (see common.lua), none when no claim waits for the reason.

local keys = KEYS
if #keys == 0 then keys = longest_waiting(ARGV[2], ARGV[3], number(ARGV[4])) end
local wakeups = {}
for _, key in ipairs(keys) do
  if field(key, 'wait_reason') == ARGV[2] then table.insert(wakeups, to_pending(key)) end
end
return wakeups
