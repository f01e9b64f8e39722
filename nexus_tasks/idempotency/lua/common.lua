-- common: shared by every transition. The loader puts this file in front of each script. It returns nothing itself.
-- KEYS are claim keys. ARGV[1] is the prefix: the first part of every key. Times are milliseconds of the Redis server.
-- A wake-up is the Celery message of a claim. Scripts return it as {claim key, job id, kind, queue, args, published_at,
-- namespace}. The wake-up of a canvas delivery goes on with {options, status, job id of the run that did the work}.
--
--   <prefix>:job:<kind>:<hash>       hash    the claim. state waiting|pending|running; id, kind, namespace, queue, scope,
--                                            args, version; force, reasons, urgency (merged for the next run) and run_*
--                                            (of the current run); errors, crashes, retries, failing_since; token
--                                            (its first part names the process that holds the lease), lease_until,
--                                            open, slot; worker (of the current or last run, JSON); due_at,
--                                            wait_reason, wait_detail; rerun_id, also (ids of reruns it serves);
--                                            enqueued_at, published_at, republished
--   <prefix>:done:<kind>:<hash>      string  "<job id> <status>" of the last run, for 15 minutes (`dropped`: 24 hours;
--                                            `gone`: see `done`)
--   <prefix>:due                     zset    waiting claims by due_at
--   <prefix>:leases                  zset    running claims by lease_until
--   <prefix>:published:<queue>       zset    pending claims by published_at, plus the ms by which their grace has grown
--   <prefix>:queues                  set     queues that ever had a pending claim
--   <prefix>:delivered:<queue>       string  the watermark: published_at of the newest message that a worker has begun
--   <prefix>:count:<namespace>       hash    claims by state, and `slots`: runs that count against the namespace's cap
--   <prefix>:waits:<reason>:<whose>  zset    claims waiting for that reason, by enqueued_at; <whose> is the namespace,
--                                            or for `pause` the kind
--   <prefix>:paused:<kind>           hash    why and since when this kind is paused: no job of it begins
--   <prefix>:pauses                  set     kinds that are paused
--
--   <prefix>:quarantine              list    messages that no worker could read (JSON), the newest first
--   <prefix>:quarantined             string  how many messages were ever moved there
--
-- A canvas delivery is a message with a chord, a link or the like: Celery itself waits for it. It is parked while it
-- waits for a run, and settled once the outcome of that run is known. A rerun is one more run, asked for during a run.
--
--   <prefix>:parked:<kind>:<hash>    hash    deliveries that wait for a run of this claim: their id -> the run's job id
--   <prefix>:delivery:<id>           hash    a delivery until Celery has accounted for it. kind, namespace, queue, args,
--                                            options (JSON); parts: runs it waits for; then status and job_id:
--                                            how the runs ended; published_at, republished; taken: when a worker
--                                            began to complete it
--   <prefix>:settle:<queue>          zset    deliveries whose runs have ended, by published_at as in `published`

local prefix = ARGV[1]
local DONE_SECONDS = 900
local DROPPED_SECONDS = 86400
local SETTLE_SECONDS = 7 * 86400 -- as long as Celery keeps a chord

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function number(value) return tonumber(value or 0) or 0 end

local function integer(value) return string.format('%.0f', value) end

local function field(key, name) return redis.call('HGET', key, name) end

local function done_key(key) return prefix .. ':done:' .. string.sub(key, #prefix + 6) end

-- The marker of the claim's last run: its job id and its status. The status `gone` says that the job did not find its
-- namespace. Callers that wait get this status. A new request does not, because the namespace may exist by now.
local function done(key)
  local id, status = string.match(redis.call('GET', done_key(key)) or '', '^(%S+) (%S+)$')
  if status ~= 'gone' then return id, status end
end

local function waits_key(key, reason)
  local whose = field(key, reason == 'pause' and 'kind' or 'namespace')
  return prefix .. ':waits:' .. reason .. ':' .. whose
end

local function count(key, what, by)
  local counts = prefix .. ':count:' .. field(key, 'namespace')
  if redis.call('HINCRBY', counts, what, by) <= 0 then redis.call('HDEL', counts, what) end
end

-- The first claims of an index, up to a score, that are still in the state `is`. Other keys are removed from the index:
-- their claims were deleted by hand, and such keys must not stop the other claims.
local function upto(index, is, score, most)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGE', index, '-inf', integer(score), 'BYSCORE', 'LIMIT', 0, most)) do
    if field(key, 'state') == is then table.insert(found, key) else redis.call('ZREM', index, key) end
  end
  return found
end

-- The claims that have waited longest for a reason. Claims that no longer wait for it are removed from the index.
local function longest_waiting(reason, whose, most)
  local index, found = prefix .. ':waits:' .. reason .. ':' .. whose, {}
  for _, key in ipairs(redis.call('ZRANGE', index, 0, most - 1)) do
    if field(key, 'wait_reason') == reason then table.insert(found, key) else redis.call('ZREM', index, key) end
  end
  return found
end

-- Takes the claim out of the index of its present state. The caller puts it into the index of the next state.
local function leave(key)
  local state = field(key, 'state')
  if not state then return end
  count(key, state, -1)
  if state == 'waiting' then
    redis.call('ZREM', prefix .. ':due', key)
    redis.call('ZREM', waits_key(key, field(key, 'wait_reason')), key)
    redis.call('HDEL', key, 'due_at', 'wait_reason', 'wait_detail')
  elseif state == 'pending' then
    redis.call('ZREM', prefix .. ':published:' .. field(key, 'queue'), key)
  else
    redis.call('ZREM', prefix .. ':leases', key)
    if field(key, 'slot') then count(key, 'slots', -1) end
    redis.call('HDEL', key, 'token', 'lease_until', 'open', 'slot')
  end
end

local function enter(key, state)
  redis.call('HSET', key, 'state', state)
  count(key, state, 1)
end

-- Returns the wake-up of this claim; the caller of the script publishes it. Every job passes here at least once, so
-- this function reads all fields with one command.
local function to_pending(key)
  leave(key)
  local f = redis.call('HMGET', key, 'id', 'kind', 'queue', 'args', 'namespace')
  local at, queue = integer(now), f[3]
  redis.call('HSET', key, 'state', 'pending', 'published_at', at)
  redis.call('HINCRBY', prefix .. ':count:' .. f[5], 'pending', 1)
  redis.call('ZADD', prefix .. ':published:' .. queue, at, key)
  redis.call('SADD', prefix .. ':queues', queue)
  return { key, f[1], f[2], queue, f[4], at, f[5] }
end

local function to_waiting(key, reason, due_at, detail)
  leave(key)
  redis.call('HDEL', key, 'republished') -- its last message has reached a worker and did not kill it
  enter(key, 'waiting')
  redis.call('HSET', key, 'due_at', integer(due_at), 'wait_reason', reason, 'wait_detail', detail or '')
  redis.call('ZADD', prefix .. ':due', integer(due_at), key)
  redis.call('ZADD', waits_key(key, reason), number(field(key, 'enqueued_at')), key)
end

-- `slot` is false for the siblings of a batch: a batch counts once against its namespace's cap.
local function to_running(key, token, lease, slot)
  leave(key)
  enter(key, 'running')
  redis.call('HSET', key, 'token', token, 'lease_until', integer(now + lease), 'started_at', integer(now))
  redis.call('HDEL', key, 'republished')
  if slot then
    redis.call('HSET', key, 'slot', '1')
    count(key, 'slots', 1)
  end
  redis.call('ZADD', prefix .. ':leases', integer(now + lease), key)
end

-- Creates the claim's fields from a request (a JSON object); the caller then moves the claim into a state.
local function create(key, request)
  redis.call('HSET', key, 'id', request.id, 'kind', request.kind, 'namespace', request.namespace, 'queue', request.queue,
    'scope', request.scope, 'args', request.args, 'version', request.version, 'enqueued_at', integer(now))
end

-- Merges a request's flags into those of the next run: force is OR-ed, reasons are a set, live wins over dream. Most
-- requests change no flag. Then nothing is written, because each write also goes to Redis' append-only file.
local function merge(key, force, reasons, urgency)
  local f = redis.call('HMGET', key, 'force', 'reasons', 'urgency')
  if force == '1' and f[1] ~= '1' then redis.call('HSET', key, 'force', '1') end
  if urgency ~= f[3] and (urgency == 'live' or (urgency and urgency ~= '' and not f[3])) then
    redis.call('HSET', key, 'urgency', urgency)
  end
  local known = f[2] or ''
  for reason in string.gmatch(reasons or '', '[^,]+') do
    if not string.find(',' .. known .. ',', ',' .. reason .. ',', 1, true) then
      known = known == '' and reason or known .. ',' .. reason
    end
  end
  if known ~= (f[2] or '') then redis.call('HSET', key, 'reasons', known) end
end

-- The merged flags become those of the run that starts now.
local function flags_to_run(key)
  local f = redis.call('HMGET', key, 'force', 'reasons', 'urgency')
  redis.call('HSET', key, 'run_force', f[1] or '', 'run_reasons', f[2] or '', 'run_urgency', f[3] or '')
  redis.call('HDEL', key, 'force', 'reasons', 'urgency')
end

-- A run that waits gives its flags back to the next run. If a rerun was asked for, the next run serves its id too.
local function flags_from_run(key)
  local f = redis.call('HMGET', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'also')
  merge(key, f[1], f[2], f[3])
  redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id')
  if f[4] then redis.call('HSET', key, 'also', f[5] and (f[5] .. ',' .. f[4]) or f[4]) end
end

local function parked_key(key) return prefix .. ':parked:' .. string.sub(key, #prefix + 6) end

local function delivery_key(id) return prefix .. ':delivery:' .. id end

-- The wake-up of a delivery whose runs have ended; with this message Celery accounts for the delivery.
local function settlement(id)
  local f = redis.call('HMGET', delivery_key(id), 'kind', 'queue', 'args', 'published_at', 'namespace', 'options',
    'status', 'job_id')
  return { '', id, f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8] }
end

local function forget(id)
  local record = delivery_key(id)
  local queue = redis.call('HGET', record, 'queue')
  if queue then redis.call('ZREM', prefix .. ':settle:' .. queue, id) end
  redis.call('DEL', record)
end

-- Notes that one of the runs that a delivery waits for has ended. If any of these runs ended dead, the delivery ends
-- dead. After the last run the delivery is in the settle list. The caller completes the delivery `own` itself; for any
-- other delivery a wake-up is added.
local function settle(id, status, job_id, wakeups, own)
  local record = delivery_key(id)
  if redis.call('EXISTS', record) == 0 then return end -- revoked
  if status == 'dead' or not redis.call('HGET', record, 'status') then
    redis.call('HSET', record, 'status', status, 'job_id', job_id)
  end
  if redis.call('HINCRBY', record, 'parts', -1) > 0 then return end
  local queue = redis.call('HGET', record, 'queue')
  redis.call('HSET', record, 'published_at', integer(now))
  redis.call('EXPIRE', record, SETTLE_SECONDS)
  redis.call('ZADD', prefix .. ':settle:' .. queue, integer(now), id)
  redis.call('SADD', prefix .. ':queues', queue)
  if id ~= own then table.insert(wakeups, settlement(id)) end
end

-- Settles the deliveries that are parked for the runs `ids` (a set); with nil, every delivery parked with the claim.
local function settle_parked(key, ids, status, job_id, wakeups, own)
  local parked = redis.call('HGETALL', parked_key(key))
  for i = 1, #parked, 2 do
    if not ids or ids[parked[i + 1]] then
      redis.call('HDEL', parked_key(key), parked[i])
      settle(parked[i], status, job_id, wakeups, own)
    end
  end
end

-- Writes down the request's canvas delivery; `park` or `settle` follows for each part of the delivery. When an id is
-- used again (a chain is continued twice), its delivery starts over.
local function record(request)
  local d = request.delivery
  if not d.first then return end
  forget(d.id)
  redis.call('HSET', delivery_key(d.id), 'kind', request.kind, 'namespace', request.namespace, 'queue', request.queue,
    'args', request.args, 'options', d.options, 'parts', d.parts)
end

local function park(key, request, run)
  if not request.delivery then return end
  record(request)
  redis.call('HSET', parked_key(key), request.delivery.id, run)
end

-- Ends the claim's run and settles the deliveries that are parked for it. A rerun that was asked for makes the claim
-- pending again; otherwise the claim is deleted and leaves a marker.
local function conclude(key, status, wakeups, own)
  local id, ids = field(key, 'id'), {}
  ids[id] = true
  for also in string.gmatch(field(key, 'also') or '', '[^,]+') do ids[also] = true end
  settle_parked(key, ids, status, id, wakeups, own)
  local rerun = field(key, 'rerun_id')
  if rerun then
    redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'also', 'errors', 'crashes', 'retries',
      'failing_since')
    redis.call('HSET', key, 'id', rerun, 'enqueued_at', integer(now))
    table.insert(wakeups, to_pending(key))
    return
  end
  leave(key)
  redis.call('DEL', key)
  redis.call('SET', done_key(key), id .. ' ' .. status, 'EX', DONE_SECONDS)
end

-- Returns a time. Messages that were published to the queue up to this time and have not arrived are lost: they are
-- older than the grace, and the queue is empty or has already delivered a later message.
local function lost_before(queue, empty, grace)
  if empty then return now - grace end
  local delivered = number(redis.call('GET', prefix .. ':delivered:' .. queue))
  if delivered > now then delivered = 0 end -- the server's clock was set back: the watermark says nothing
  return math.min(now - grace, delivered - 1)
end

-- A run of this namespace has ended: makes pending the claim that has waited longest for a free slot.
local function next_in_line(namespace, wakeups)
  for _, key in ipairs(longest_waiting('concurrency', namespace, 1)) do table.insert(wakeups, to_pending(key)) end
end
