-- delivery_outcome: a worker has the message of a canvas delivery and asks how the delivery's runs ended.
-- KEYS: none. ARGV: 1 the key prefix, 2 the delivery's id, 3 its queue, 4 published_at of the message (it moves the
-- queue's watermark).
-- Only one message of a delivery gets the outcome, and the worker that has this message completes the delivery. If that
-- worker dies, the sweep sends another message.
-- Returns {status, job id}. Returns false when a run has not ended, when another worker completes the delivery, or when
-- the delivery is completed already.

local record, watermark = delivery_key(ARGV[2]), prefix .. ':delivered:' .. ARGV[3]
if number(ARGV[4]) > number(redis.call('GET', watermark)) then redis.call('SET', watermark, ARGV[4]) end
if not redis.call('ZSCORE', prefix .. ':settle:' .. ARGV[3], ARGV[2]) then return false end
if redis.call('HSETNX', record, 'taken', integer(now)) == 0 then return false end
return redis.call('HMGET', record, 'status', 'job_id')
