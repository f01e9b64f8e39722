-- delivery_accounted: forgets a canvas delivery (see common.lua) that Celery has accounted for. Celery has stored its
-- result, counted its part of a chord and sent its links.
-- KEYS: none. ARGV: 1 the key prefix, 2 the delivery's id.
-- When the delivery was asked for again meanwhile, it has no field `taken` and is not forgotten. Returns nothing.

if redis.call('HGET', delivery_key(ARGV[2]), 'taken') then forget(ARGV[2]) end
