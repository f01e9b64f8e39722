-- sweep_settle: sends the messages of canvas deliveries (see common.lua) in one queue again. The runs of these
-- deliveries have ended, but Celery has not accounted for them, because their message is lost or its worker died.
-- KEYS: none. ARGV: 1 the key prefix, 2 the queue, 3 '1' when the queue is empty, 4 how many deliveries at the most,
-- 5 how old a lost message is at least (ms), 6 grace (ms), 7 longest grace (ms).
-- A message is lost under the same conditions as in sweep_lost.lua, and the grace grows as it does there.
-- Returns wake-ups to publish (see common.lua), none when no delivery is lost.

local index, age, grace, wakeups = prefix .. ':settle:' .. ARGV[2], number(ARGV[5]), number(ARGV[6]), {}
local newest = lost_before(ARGV[2], ARGV[3] == '1', age)
for _, id in ipairs(redis.call('ZRANGE', index, '-inf', integer(newest), 'BYSCORE', 'LIMIT', 0, ARGV[4])) do
  local record = delivery_key(id)
  if redis.call('EXISTS', record) == 0 then
    redis.call('ZREM', index, id) -- no worker completed it within 7 days
  elseif age >= grace or number(redis.call('HGET', record, 'republished')) == 0 then
    local times = add_to(record, 'republished', 1)
    redis.call('HDEL', record, 'taken')
    redis.call('HSET', record, 'published_at', integer(now))
    redis.call('ZADD', index, integer(now + math.min(grace * 2 ^ times, number(ARGV[7])) - grace), id)
    table.insert(wakeups, settlement(id))
  end
end
return wakeups
