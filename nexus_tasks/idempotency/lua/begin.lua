-- begin: a worker was woken for a claim. KEYS[1] the claim. ARGV: 2 token, 3 lease (ms), 4 cap of the namespace,
-- 5 whether siblings may take this run along until it has gathered its own batch, 6 published_at of the message,
-- 7 the request as the message knows it (JSON), for a claim that Redis has lost, 8 the newest version understood.
-- A canvas delivery that is settled, accounted for or revoked is STALE even when there is a claim, or no marker.
-- Returns {outcome, claim's fields}: RUN with them; SUPERSEDED a live run has it; STALE it is done or was dropped;
-- EARLY it waits.

local key, token, lease, cap = KEYS[1], ARGV[2], number(ARGV[3]), number(ARGV[4])
local request = cjson.decode(ARGV[7])

local watermark = prefix .. ':delivered:' .. request.queue
if number(ARGV[6]) > number(redis.call('GET', watermark)) then redis.call('SET', watermark, ARGV[6]) end

local state = field(key, 'state')
if request.delivery then
  -- One that Redis does not know although it has not lost the claim is accounted for, or revoked; one that it knows
  -- although the claim is done is being completed.
  local known = redis.call('EXISTS', delivery_key(request.delivery.id)) == 1
  local lost = not state and not known and redis.call('EXISTS', done_key(key)) == 0
  if not lost and (not state or not known) then return { 'STALE', {} } end
end
if state == 'running' then return { 'SUPERSEDED', {} } end
if state == 'waiting' then return { 'EARLY', {} } end
if not state then
  if done(key) then return { 'STALE', {} } end
  create(key, request)
  park(key, request, request.id)
  merge(key, request.force, request.reasons, request.urgency)
end

local kind, namespace = field(key, 'kind'), field(key, 'namespace')
local reason, seconds = nil, 0
if redis.call('EXISTS', prefix .. ':paused:' .. kind) == 1 then
  reason, seconds = 'pause', 60
elseif number(redis.call('HGET', prefix .. ':count:' .. namespace, 'slots')) >= cap then
  reason, seconds = 'concurrency', 15
elseif number(field(key, 'version')) > number(ARGV[8]) then
  reason, seconds = 'version', 30 -- written by a newer release: left to a worker that knows it
end
if reason then
  to_waiting(key, reason, now + seconds * 1000, '')
  return { 'EARLY', {} }
end

to_running(key, token, lease, true)
flags_to_run(key)
if ARGV[5] == '1' then redis.call('HSET', key, 'open', '1') end
return { 'RUN', redis.call('HGETALL', key) }
