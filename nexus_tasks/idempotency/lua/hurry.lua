-- hurry: lets claims go on that wait for the given reason.
-- KEYS: the claims. ARGV: 1 the key prefix, 2 the reason.
-- Without KEYS, the claims are those that have waited longest for the reason. Then ARGV also has 3 the namespace (for
-- the reasons `pause` and `version` see `waits` in common.lua) of the claims, 4 how many claims at the most.
-- A claim that waits for another reason goes on waiting, so a back-off is never cut short. A woken claim becomes
-- pending, or stands in its namespace's line (see common.lua).
-- Returns {number of woken claims, wake-ups to publish (see common.lua)}.

local keys = KEYS
if #keys == 0 then keys = longest_waiting(ARGV[2], ARGV[3], number(ARGV[4])) end
local woken, wakeups = 0, {}
for _, key in ipairs(keys) do
  if field(key, 'wait_reason') == ARGV[2] then
    woken = woken + 1
    local wakeup = ready(key)
    if wakeup then table.insert(wakeups, wakeup) end
  end
end
if #KEYS == 0 and ARGV[2] == 'version' and redis.call('EXISTS', prefix .. ':waits:version:' .. ARGV[3]) == 0 then
  redis.call('SREM', prefix .. ':versions', ARGV[3])
end
return { woken, wakeups }
