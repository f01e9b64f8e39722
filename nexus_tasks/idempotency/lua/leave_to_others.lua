-- leave_to_others: lets a claim wait for another worker, because a worker does not understand the claim's message:
-- another release wrote it.
-- KEYS: 1 the claim. ARGV: 1 the key prefix, 2 the worker's dialect of the kind (see `strange_to` in common.lua).
-- A claim that could run now waits for a worker of another dialect. A claim that runs or waits does not change, unless
-- it waits for a free slot.
-- Returns wake-ups to publish (see common.lua): of the next claims in line.

local key, wakeups = KEYS[1], {}
if field(key, 'state') == 'pending' or field(key, 'wait_reason') == 'concurrency' then
  to_version(key, ARGV[2])
  fill_lines(field(key, 'namespace'), wakeups)
end
return wakeups
