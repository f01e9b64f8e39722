-- sweep_lost: finds pending claims of one queue whose message is lost.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many claims at the most, 5
-- grace (ms), 6 longest grace (ms), 7 attempts before a job is dead, 8 the sweep's own token, 9 lease (ms).
-- A message is lost when it is older than the grace, and the queue is empty or has already delivered a later message.
-- Each republishing doubles the grace. The third republishing and each later one count as a crash. So the job of a
-- message that kills its worker before `begin` ends as a dead letter too.
-- Returns {fields of each claim without attempts left, wake-ups to publish again (see common.lua)}.

local published, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[5])
local newest = lost_before(ARGV[2], ARGV[3] == '1', grace)
local dead, wakeups = {}, {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  local times = number(field(key, 'republished'))
  if times >= 2 then redis.call('HINCRBY', key, 'crashes', 1) end
  if number(field(key, 'crashes')) + number(field(key, 'errors')) >= number(ARGV[7]) then
    to_running(key, ARGV[8], number(ARGV[9]), false)
    flags_to_run(key) -- from now on requests ask for a rerun: one more run after this one
    table.insert(dead, redis.call('HGETALL', key))
  else
    redis.call('HSET', key, 'republished', times + 1)
    table.insert(wakeups, to_pending(key))
    -- A claim with a longer grace stands further back in the index, so it does not hold up newly lost claims.
    local longer = math.min(grace * 2 ^ (times + 1), number(ARGV[6])) - grace
    redis.call('ZADD', published, integer(now + longer), key)
  end
end
return { dead, wakeups }
