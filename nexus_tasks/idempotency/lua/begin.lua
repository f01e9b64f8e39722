-- begin: starts a run of a claim, because a worker has received the claim's message.
-- KEYS: 1 the claim.
-- ARGV: 1 the key prefix
--       2 the fencing token of the new run
--       3 lease (ms)
--       4 cap: how many runs the namespace may have at a time
--       5 '1' when the run gathers a batch; until it calls take.lua, another run may take this claim along
--       6 published_at of the message; it moves the queue's watermark
--       7 the request of the message (JSON); when Redis has lost the claim, the script makes the claim from it
--       8 the newest version of claims that this worker understands
--       9 the worker (JSON), which `nexus status` shows
--      10 the worker's dialect of the kind (see `strange_to` in common.lua)
-- Returns {outcome, fields of the claim, wake-ups to publish (see common.lua)}. The fields are empty, except with RUN.
--   RUN         the run has begun
--   SUPERSEDED  another live run has the claim
--   STALE       the claim is done or was dropped. The message of a canvas delivery is stale too when Celery has
--               accounted for the delivery, when the delivery was revoked, or when its claim is gone
--   EARLY       the claim waits; this call may have made it wait. A claim that already waited for a free slot is begun
--               when a slot is free

local key, token, lease, cap = KEYS[1], ARGV[2], number(ARGV[3]), number(ARGV[4])
local request = cjson.decode(ARGV[7])

local watermark = prefix .. ':delivered:' .. request.queue
note_delivery(watermark, ARGV[6])

local state = field(key, 'state')
if request.delivery then
  -- If Redis has the claim but not the delivery, the delivery is accounted for or revoked. If Redis has the delivery
  -- but not the claim, the runs have ended, and a worker completes the delivery. In both cases the message is stale.
  -- If Redis has no claim, no delivery and no marker, it has lost them, and the script makes them again.
  local known = redis.call('EXISTS', delivery_key(request.delivery.id)) == 1
  local lost = not state and not known and redis.call('EXISTS', done_key(key)) == 0
  if not lost and (not state or not known) then return { 'STALE', {}, {} } end
end
if state == 'running' then return { 'SUPERSEDED', {}, {} } end
if state == 'waiting' and field(key, 'wait_reason') ~= 'concurrency' then return { 'EARLY', {}, {} } end
if not state then
  if done(key) then return { 'STALE', {}, {} } end
  create(key, request)
  park(key, request, request.id)
end

local f = redis.call('HMGET', key, 'kind', 'namespace', 'queue', 'version')
local namespace, queue, wakeups = f[2], f[3], {}
local outcome, fields = 'EARLY', {}
if is_paused(f[1]) then
  to_waiting(key, 'pause', false, '')
elseif number(f[4]) > number(ARGV[8]) then
  to_version(key, ARGV[10])
elseif number(redis.call('HGET', prefix .. ':count:' .. namespace, 'slots')) >= cap then
  to_line(key)
else
  trace(key, request)
  to_running(key, token, lease, true)
  observe('wait', f[1], field(key, 'enqueued_at'))
  redis.call('HSET', key, 'worker', ARGV[9])
  flags_to_run(key)
  if ARGV[5] == '1' then redis.call('HSET', key, 'open', '1') end
  outcome, fields = 'RUN', redis.call('HGETALL', key)
end
-- A claim that has become urgent has left its place in the queue of its kind to another claim.
if cap_of(namespace) == cap and queue ~= URGENT then
  fill(namespace, queue, wakeups)
else
  if cap_of(namespace) ~= cap then set_cap(namespace, cap) end
  fill_lines(namespace, wakeups)
end
return { outcome, fields, wakeups }
