-- delivery_outcome: a worker has a canvas delivery's message and asks how the runs that it waits for ended.
-- KEYS: none. ARGV: 2 the delivery's id, 3 its queue, 4 published_at of the message (it moves the queue's watermark).
-- Only one message of a delivery gets the outcome, and its worker completes the delivery. If that worker dies, the
-- sweep sends another message.
-- Returns {status, job id}; or false when the runs have not ended, another worker completes the delivery, or it is
-- completed.

local record, watermark = delivery_key(ARGV[2]), prefix .. ':delivered:' .. ARGV[3]
if number(ARGV[4]) > number(redis.call('GET', watermark)) then redis.call('SET', watermark, ARGV[4]) end
if not redis.call('ZSCORE', prefix .. ':settle:' .. ARGV[3], ARGV[2]) then return false end
if redis.call('HSETNX', record, 'taken', integer(now)) == 0 then return false end
return redis.call('HMGET', record, 'status', 'job_id')
