-- sweep_lost: finds pending claims of one queue whose message is lost.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many claims at the most, 5
-- grace (ms), 6 longest grace (ms).
-- A message is lost when it is older than the grace, and the queue is empty or has already delivered a later message.
-- Each republishing doubles the grace. So a message that kills its worker before `begin` kills a worker every 10
-- minutes at the most. It counts as no crash: nothing has begun, and workers of another release may have dropped it.
-- Returns wake-ups to publish again (see common.lua).

local published, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[5])
local newest = lost_before(ARGV[2], ARGV[3] == '1', grace)
local wakeups = {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  local times = redis.call('HINCRBY', key, 'republished', 1)
  table.insert(wakeups, to_pending(key))
  -- A claim with a longer grace stands further back in the index, so it does not hold up newly lost claims.
  local longer = math.min(grace * 2 ^ times, number(ARGV[6])) - grace
  redis.call('ZADD', published, integer(now + longer), key)
end
return wakeups
