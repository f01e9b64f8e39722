-- delivery_accounted: Celery has accounted for a canvas delivery: its result is stored, its chord counted, its links
-- sent.
-- KEYS: none. ARGV: 2 the delivery's id.
-- Forgets the delivery, unless it was asked for again meanwhile (it is not `taken` then). Returns nothing.

if redis.call('HGET', delivery_key(ARGV[2]), 'taken') then forget(ARGV[2]) end
