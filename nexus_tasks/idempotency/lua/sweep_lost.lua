-- sweep_lost: sends the messages of pending claims in one queue again, when the messages are lost.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many claims at the most, 5
-- how old a lost message is at least (ms), 6 grace (ms), 7 longest grace (ms).
-- A message is lost when it is that old, and the queue is empty or a worker has begun a later message. The age is the
-- grace, or less just after a worker of this machine has died. Then only messages that were never sent again count.
-- Each republishing doubles the grace of the claim, up to the longest grace (10 minutes). So a message that kills its
-- worker before begin.lua kills one worker every 10 minutes at the most. A lost message counts as no crash, because no
-- run has begun, and a worker of another release may have dropped the message.
-- A claim that was published three times is no longer `ahead` (see common.lua). Otherwise such claims would hold up the
-- line of their namespace for as long as their grace lasts.
-- Returns wake-ups to publish again (see common.lua).

local published, age, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[5]), number(ARGV[6])
local newest = lost_before(ARGV[2], ARGV[3] == '1', age)
local wakeups = {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  if age >= grace or number(field(key, 'republished')) == 0 then
    local times, namespace = add_to(key, 'republished', 1), field(key, 'namespace')
    table.insert(wakeups, to_pending(key))
    total('resent', field(key, 'kind'), 1)
    -- The longer grace is added to the claim's score. So this claim does not come before newly lost claims.
    local longer = math.min(grace * 2 ^ times, number(ARGV[7])) - grace
    redis.call('ZADD', published, integer(now + longer), key)
    if times >= SUSPECT then
      redis.call('ZREM', ahead_key(namespace, ARGV[2]), key)
      fill_lines(namespace, wakeups)
    end
  end
end
return wakeups
