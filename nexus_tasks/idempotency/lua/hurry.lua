-- hurry: makes claims that wait for a reason pending now.
-- KEYS: these claims only; none: the claims that have waited longest for the reason. ARGV: 2 the reason, 3 the
-- namespace whose claims they are (for `pause` the kind; read only without KEYS), 4 how many at the most (only without
-- KEYS).
-- A claim that waits for another reason stays as it is, so a back-off is never cut short.
-- Returns wake-ups to publish, none when no claim waits for the reason.

local keys = KEYS
if #keys == 0 then keys = longest_waiting(ARGV[2], ARGV[3], number(ARGV[4])) end
local wakeups = {}
for _, key in ipairs(keys) do
  if field(key, 'wait_reason') == ARGV[2] then table.insert(wakeups, to_pending(key)) end
end
return wakeups
