-- account: Celery has accounted for a canvas delivery: its result is stored, its chord counted, its links are sent.
-- ARGV: 2 the delivery's id. One that was asked for anew meanwhile stays.

if redis.call('HGET', delivery_key(ARGV[2]), 'taken') then forget(ARGV[2]) end
