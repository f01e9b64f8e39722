-- sweep_lost: pending claims of one queue whose message cannot be on its way any more. ARGV: 2 the queue, 3 '1' when the
-- queue is empty, 4 how many at the most, 5 grace (ms), 6 longest grace (ms), 7 attempts
-- before a job is dead, 8 a token of the sweep's own, 9 lease (ms).
-- Lost is what is older than the grace while the queue is empty or has already delivered a later message. The grace
-- doubles with every republishing; from the third on each counts as a crash, so that a message that kills whoever
-- receives it before `begin` ends as a dead letter too.
-- Returns {fields of the claims that have used up their attempts, wake-ups to publish}.

local published = prefix .. ':published:' .. ARGV[2]
local newest = now - number(ARGV[5])
if ARGV[3] ~= '1' then
  newest = math.min(newest, number(redis.call('GET', prefix .. ':delivered:' .. ARGV[2])) - 1)
end
local dead, wakeups = {}, {}
for _, key in ipairs(redis.call('ZRANGE', published, '-inf', integer(newest), 'BYSCORE', 'LIMIT', 0, ARGV[4])) do
  local times = number(field(key, 'republished'))
  local grace = math.min(number(ARGV[5]) * 2 ^ times, number(ARGV[6]))
  if now - number(field(key, 'published_at')) >= grace then
    if times >= 2 then redis.call('HINCRBY', key, 'crashes', 1) end
    if number(field(key, 'crashes')) + number(field(key, 'errors')) >= number(ARGV[7]) then
      to_running(key, ARGV[8], number(ARGV[9]), false)
      table.insert(dead, redis.call('HGETALL', key))
    else
      redis.call('HSET', key, 'republished', times + 1)
      table.insert(wakeups, to_pending(key))
    end
  end
end
return { dead, wakeups }
