-- hurry: what claims wait for has come. ARGV: 2 reason, 3 whose (a namespace, for `pause` a kind; used without KEYS),
-- 4 how many at the most. KEYS: only these claims, or none for the longest waiting of that reason.
-- Claims that wait for another reason stay as they are: a back-off is never cut short. Returns wake-ups to publish.

local keys = KEYS
if #keys == 0 then keys = longest_waiting(ARGV[2], ARGV[3], number(ARGV[4])) end
local wakeups = {}
for _, key in ipairs(keys) do
  if field(key, 'wait_reason') == ARGV[2] then table.insert(wakeups, to_pending(key)) end
end
return wakeups
