-- sweep_lost: pending claims of one queue whose message cannot be on its way any more. ARGV: 2 the queue, 3 '1' when the
-- queue is empty, 4 how many at the most, 5 grace (ms), 6 longest grace (ms), 7 attempts
-- before a job is dead, 8 a token of the sweep's own, 9 lease (ms).
-- Lost is what is older than the grace while the queue is empty or has already delivered a later message. The grace
-- doubles with every republishing; from the third on each counts as a crash, so that a message that kills whoever
-- receives it before `begin` ends as a dead letter too.
-- Returns {fields of the claims that have used up their attempts, wake-ups to publish}.

local published, grace = prefix .. ':published:' .. ARGV[2], number(ARGV[5])
local newest = lost_before(ARGV[2], ARGV[3] == '1', grace)
local dead, wakeups = {}, {}
for _, key in ipairs(upto(published, 'pending', newest, ARGV[4])) do
  local times = number(field(key, 'republished'))
  if times >= 2 then redis.call('HINCRBY', key, 'crashes', 1) end
  if number(field(key, 'crashes')) + number(field(key, 'errors')) >= number(ARGV[7]) then
    to_running(key, ARGV[8], number(ARGV[9]), false)
    flags_to_run(key) -- what is asked for from now on is the rerun's
    table.insert(dead, redis.call('HGETALL', key))
  else
    redis.call('HSET', key, 'republished', times + 1)
    table.insert(wakeups, to_pending(key))
    -- Those whose grace has grown stand further back: they keep no newly lost claim from its turn.
    local longer = math.min(grace * 2 ^ (times + 1), number(ARGV[6])) - grace
    redis.call('ZADD', published, integer(now + longer), key)
  end
end
return { dead, wakeups }
