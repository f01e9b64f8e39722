-- sweep_lost: sends the messages of pending claims in one queue again, when the messages are lost.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many claims at the most, 5
-- grace (ms), 6 longest grace (ms).
-- A message is lost when it is older than the grace, and the queue is empty or a worker has begun a later message.
-- Each republishing doubles the grace of the claim, up to the longest grace (10 minutes). So a message that kills its
-- worker before begin.lua kills one worker every 10 minutes at the most. A lost message counts as no crash, because no
-- run has begun, and a worker of another release may have dropped the message.
-- Returns wake-ups to publish again (see common.lua).

local published, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[5])
local newest = lost_before(ARGV[2], ARGV[3] == '1', grace)
local wakeups = {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  local times = redis.call('HINCRBY', key, 'republished', 1)
  table.insert(wakeups, to_pending(key))
  -- The longer grace is added to the claim's score. So this claim does not come before newly lost claims.
  local longer = math.min(grace * 2 ^ times, number(ARGV[6])) - grace
  redis.call('ZADD', published, integer(now + longer), key)
end
return wakeups
