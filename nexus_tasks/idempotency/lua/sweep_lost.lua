-- sweep_lost: sends the messages of pending claims in one queue again, when the messages are lost.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many claims at the most, 5
-- how old a lost message is at least (ms), 6 grace (ms), 7 longest grace (ms).
-- A message is lost when it is that old, and the queue is empty or a worker has begun a later message. The age is the
-- grace, or less just after a worker of this machine has died. The first republishing adds one grace to the claim's age,
-- and each further one doubles what it adds, up to the longest grace (10 minutes). So a message that kills its
-- worker before begin.lua kills one worker every 10 minutes at the most. A lost message counts as no crash, because no
-- run has begun, and a worker of another release may have dropped the message.
-- Returns wake-ups to publish again (see common.lua).

local published, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[6])
local newest = lost_before(ARGV[2], ARGV[3] == '1', number(ARGV[5]))
local wakeups = {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  local times = redis.call('HINCRBY', key, 'republished', 1)
  table.insert(wakeups, to_pending(key))
  -- The longer grace is added to the claim's score. So this claim does not come before newly lost claims.
  local longer = math.min(grace * 2 ^ times, number(ARGV[7])) - grace
  redis.call('ZADD', published, integer(now + longer), key)
end
return wakeups
