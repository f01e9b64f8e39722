-- unlock: whoever holds the sweep's lock gives it back. KEYS[1] the lock, a string that expires. ARGV: 2 its token.
-- A sweeper that stalled for longer than its lock lasts leaves the next one's alone.

if redis.call('GET', KEYS[1]) == ARGV[2] then redis.call('DEL', KEYS[1]) end
