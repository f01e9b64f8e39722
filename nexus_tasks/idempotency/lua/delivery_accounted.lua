-- delivery_accounted: Celery has accounted for a canvas delivery. It has stored the delivery's result, counted its part
-- of a chord and sent its links.
-- KEYS: none. ARGV: 1 the key prefix, 2 the delivery's id.
-- Forgets the delivery, unless it was asked for again meanwhile (then it is not `taken`). Returns nothing.

if redis.call('HGET', delivery_key(ARGV[2]), 'taken') then forget(ARGV[2]) end
