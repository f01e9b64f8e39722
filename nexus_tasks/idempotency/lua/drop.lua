-- drop: an operator, a revoke or an erasure removes a claim in any state. KEYS[1] the claim. ARGV: 2 only when the
-- claim's own id is this one ('' for any). The marker stops a message on its way, never a new request.
-- Returns {1 when it was dropped, else 0, wake-ups to publish}.

local key, wakeups = KEYS[1], {}
local id = field(key, 'id')
if not id or (ARGV[2] ~= '' and ARGV[2] ~= id) then return { 0, wakeups } end
local namespace, slot = field(key, 'namespace'), field(key, 'slot')
leave(key)
redis.call('DEL', key)
redis.call('SET', done_key(key), id .. ' dropped', 'EX', DROPPED_SECONDS)
if slot then next_in_line(namespace, wakeups) end
return { 1, wakeups }
