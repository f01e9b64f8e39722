-- drop: removes a claim in any state, for an operator, a revoke or an erasure.
-- KEYS: 1 the claim. ARGV: 1 the key prefix, 2 the job id that the claim must have ('' for any), 3 a canvas delivery
-- that was revoked ('' for none).
-- The script forgets the revoked delivery, even if the claim stays, because Celery has accounted for it. All other
-- deliveries that are parked with a removed claim (see common.lua) are settled with the status `dropped`. The done
-- marker `dropped` makes a message that is still on its way do nothing. It does not stop a new request.
-- Returns {1 or 0, wake-ups to publish}. 1: the claim was removed. 0: there is no claim, or it has another job id.

local key, wakeups = KEYS[1], {}
if ARGV[3] ~= '' then
  redis.call('HDEL', parked_key(key), ARGV[3])
  forget(ARGV[3])
end
local id = field(key, 'id')
if not id or (ARGV[2] ~= '' and ARGV[2] ~= id) then return { 0, wakeups } end
local namespace = field(key, 'namespace')
settle_parked(key, nil, 'dropped', id, wakeups, '')
leave(key)
local ids, rerun = ids_of(key), field(key, 'rerun_id')
if rerun then ids[rerun] = true end
forget_ids(field(key, 'kind'), ids)
redis.call('DEL', key)
redis.call('SET', done_key(key), id .. ' dropped', 'EX', DROPPED_SECONDS)
fill_lines(namespace, wakeups)
return { 1, wakeups }
