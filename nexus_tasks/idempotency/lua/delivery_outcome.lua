-- delivery_outcome: returns how the runs of a canvas delivery ended, because a worker has the delivery's message.
-- KEYS: none. ARGV: 1 the key prefix, 2 the delivery's id, 3 its queue, 4 published_at of the message; it moves the
-- queue's watermark.
-- Only one message of a delivery gets the outcome. The worker that has this message completes the delivery. If that
-- worker dies, the sweep sends another message (sweep_settle.lua).
-- Returns {status, job id}. Returns false when a run has not ended, when another worker completes the delivery, or when
-- Celery has accounted for the delivery.

local record, watermark = delivery_key(ARGV[2]), prefix .. ':delivered:' .. ARGV[3]
note_delivery(watermark, ARGV[4])
if not redis.call('ZSCORE', prefix .. ':settle:' .. ARGV[3], ARGV[2]) then return false end
if redis.call('HSETNX', record, 'taken', integer(now)) == 0 then return false end
return redis.call('HMGET', record, 'status', 'job_id')
