-- lock: one sweeper at a time. KEYS[1] the lock, a string that expires. ARGV: 2 the sweeper's token, 3 for how long (ms).
-- Whoever has it keeps it for that long from now. Returns 1, or 0 while it is another's.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
