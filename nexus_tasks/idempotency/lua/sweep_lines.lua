-- sweep_lines: fills the lines of namespaces (see common.lua) that the sweep has not looked at for a while.
-- KEYS: none. ARGV: 1 the key prefix, 2 how many namespaces at the most, 3 after how many ms to look at one again.
-- The end of a run fills the lines of its namespace. It does not when a worker of the release before ended the run, or
-- when the run's claim was deleted by hand. This script fills such lines.
-- Returns wake-ups to publish (see common.lua), none when every line is filled.

local lines, wakeups = prefix .. ':lines', {}
local before = integer(now - number(ARGV[3]))
for _, namespace in ipairs(redis.call('ZRANGE', lines, '-inf', before, 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  redis.call('ZADD', lines, integer(now), namespace)
  if redis.call('EXISTS', prefix .. ':lines:' .. namespace) == 0 then redis.call('ZREM', lines, namespace) end
  fill_lines(namespace, wakeups)
end
return wakeups
