-- leave_to_others: a worker has a message that it does not understand, because another release wrote it.
-- KEYS: 1 the claim of the message. ARGV: 1 the key prefix, 2 the worker's dialect of the kind.
-- A claim that could run waits for a worker that understands it (see common.lua). Any other claim does not change.
-- Returns wake-ups to publish (see common.lua): the next claims in line.

local key, wakeups = KEYS[1], {}
if field(key, 'state') == 'pending' or field(key, 'wait_reason') == 'concurrency' then
  to_version(key, ARGV[2])
  fill(field(key, 'namespace'), field(key, 'queue'), wakeups)
end
return wakeups
