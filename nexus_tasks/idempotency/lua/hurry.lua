-- hurry: wakes claims that wait for one reason. Claims that wait for another reason go on waiting.
-- KEYS: the claims. ARGV: 1 the key prefix, 2 the reason.
-- Without KEYS, the script wakes the claims that have waited longest for the reason. Then ARGV also has 3 the namespace
-- of the claims (for the reasons `pause` and `version` see `waits` in common.lua), 4 how many claims at the most.
-- The script then also writes down the time, for runs that are about to wait (see `woken` in common.lua).
-- A woken claim becomes pending, or gets into its namespace's line (see common.lua).
-- Returns {number of woken claims, wake-ups to publish (see common.lua)}.

local keys = KEYS
if #keys == 0 then
  keys = longest_waiting(ARGV[2], ARGV[3], number(ARGV[4]))
  if ARGV[2] ~= 'pause' and ARGV[2] ~= 'version' then
    redis.call('SET', woken_key(ARGV[2], ARGV[3]), integer(now), 'EX', WOKEN_SECONDS)
  end
end
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
