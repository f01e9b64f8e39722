-- set_aside: renames a key that another program has made with a wrong type, and keeps it for 30 days.
-- KEYS: 1 the key. ARGV: 1 the key prefix; 2 the type that the key must have.
-- Returns 1 when the key was renamed, and 0 when its type is right or the key is gone.

local found = redis.call('TYPE', KEYS[1]).ok
if found == ARGV[2] or found == 'none' then return 0 end
local aside = prefix .. ':damaged:' .. string.sub(KEYS[1], #prefix + 2)
redis.call('RENAME', KEYS[1], aside)
redis.call('EXPIRE', aside, DAMAGED_SECONDS)
return 1
