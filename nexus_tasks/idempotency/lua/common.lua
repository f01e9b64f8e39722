-- common: shared by every transition. The loader puts this file in front of each script. It returns nothing itself.
-- KEYS are claim keys. ARGV[1] is the prefix: the first part of every key. Times are milliseconds of the Redis server.
-- A wake-up is the Celery message of a claim. Scripts return it as {claim key, job id, kind, queue, args, published_at,
-- namespace, trace}. The wake-up of a canvas delivery has no trace and goes on with {options, status, job id of the run that did the work}.
--
--   <prefix>:job:<kind>:<hash>       hash    the claim. state waiting|pending|running; id, kind, namespace, queue, scope,
--                                            args, version; force, reasons, urgency (merged for the next run) and run_*
--                                            (of the current run); errors, crashes, retries, failing_since; token
--                                            (its first part names the process that holds the lease), lease_until,
--                                            open, slot; worker (of the current or last run, JSON); error (of
--                                            the last failed run); due_at, wait_reason, wait_detail; strange_to
--                                            (dialects of the kind in which workers did not understand the
--                                            claim, by comma); rerun_id,
--                                            rerun_args, also (ids of reruns it serves); enqueued_at, published_at,
--                                            republished; trace (JSON: root_id, parent_id and headers of the job's
--                                            messages)
--   <prefix>:done:<kind>:<hash>      string  "<job id> <status>" of the last run, for 15 minutes (`dropped`: 24 hours;
--                                            `gone`: see `done`)
--   <prefix>:due                     zset    waiting claims by due_at, without those that wait for an event: for
--                                            `concurrency` a free slot, for `pause` the end of the pause, for
--                                            `version` a worker that understands the claim
--   <prefix>:leases                  zset    running claims by lease_until
--   <prefix>:published:<queue>       zset    pending claims by published_at, plus the ms by which their grace has grown
--   <prefix>:queues                  set     queues that ever had a pending claim
--   <prefix>:delivered:<queue>       string  the watermark: published_at of the newest message that a worker has begun
--   <prefix>:ids:<kind>:<start>      hash    job id -> the hash in its claim's key, for the ids in id, rerun_id and also.
--                                            <start> is the first 3 bytes of the ids: Redis keeps small hashes compact
--   <prefix>:kinds                   set     kinds that ever had a claim
--   <prefix>:reasons                 set     reasons for which a claim ever waited
--   <prefix>:count:<namespace>       hash    claims by state, and `slots`: runs that count against the namespace's cap
--   <prefix>:waits:<reason>:<whose>  zset    claims waiting for that reason, by enqueued_at; <whose> is the namespace,
--                                            or for `pause` the kind, or for `version` "<kind>|<strange_to>"
--   <prefix>:versions                set     each "<kind>|<strange_to>" for which claims wait
--   <prefix>:cap:<namespace>         string  how many runs the namespace may have at a time, as the last `begin` said;
--                                            without it 16
--   <prefix>:reasons                 set     reasons for which a claim ever waited
--   <prefix>:paused:<kind>           hash    why and since when this kind is paused: no job of it begins
--   <prefix>:pauses                  set     kinds that are paused
--   <prefix>:storage                 string  the identity of the storage that the claims belong to
--   <prefix>:reconcile:<kind>        string  the cursor up to which reconcile has looked at the kind's wanted rows
--   <prefix>:clock                   string  the server's time in ms, as the last sweep noted it (see sweep_clock)
--   <prefix>:held                    hash    worker -> how many of its threads are held by runs over their limit (JSON)
--
--   <prefix>:checked                 string  where the check of the counters goes on (a cursor of SCAN)
--   <prefix>:quarantine              list    messages that no worker could read (JSON), the newest first
--   <prefix>:quarantined             string  how many messages were ever moved there
--
-- A namespace has few wake-ups on their way in each queue (see `room`). Its other claims that could run stand in a line:
-- they wait for the reason `concurrency` and have no due_at. `fill` publishes the first of a line when there is room.
--
--   <prefix>:line:<namespace>|<queue>   zset  a line: live claims before dreams, then by enqueued_at
--   <prefix>:ahead:<namespace>|<queue>  zset  pending claims of the namespace in the queue, by published_at
--   <prefix>:lines                      zset  namespaces that have lines, by when the sweep last looked at their lines
--   <prefix>:lines:<namespace>          set   queues in which the namespace has a line
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
local DEFAULT_CAP = 16
local CAP_SECONDS = 86400
local PAUSED_SECONDS = 60 -- how long a cap of 0 is believed: a worker may note it just after the end of the pause
local AHEAD = 8 -- wake-ups of a namespace that may be on their way in a queue
local BEHIND = 2 ^ 42 -- ms: a later time than any until the year 2109

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

local function line_key(namespace, queue) return prefix .. ':line:' .. namespace .. '|' .. queue end

local function cap_key(namespace) return prefix .. ':cap:' .. namespace end

local function set_cap(namespace, cap)
  redis.call('SET', cap_key(namespace), cap, 'EX', cap > 0 and CAP_SECONDS or PAUSED_SECONDS)
end

local function cap_of(namespace) return number(redis.call('GET', cap_key(namespace)) or DEFAULT_CAP) end

local function ahead_key(namespace, queue) return prefix .. ':ahead:' .. namespace .. '|' .. queue end

local function ids_key(kind, id) return prefix .. ':ids:' .. kind .. ':' .. string.sub(id, 1, 3) end

-- Lets `Claims.find` find the claim by this job id.
local function index_id(key, kind, id)
  redis.call('HSET', ids_key(kind, id), id, string.sub(key, -64))
  redis.call('SADD', prefix .. ':kinds', kind)
end

local function forget_ids(kind, ids)
  for id in pairs(ids) do redis.call('HDEL', ids_key(kind, id), id) end
end

local function waits_key(key, reason)
  local whose = field(key, (reason == 'pause' or reason == 'version') and 'kind' or 'namespace')
  if reason == 'version' then whose = whose .. '|' .. (field(key, 'strange_to') or '') end
  return prefix .. ':waits:' .. reason .. ':' .. whose
end

local function count(namespace, what, by)
  local counts = prefix .. ':count:' .. namespace
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

local function is_paused(kind) return redis.call('EXISTS', prefix .. ':paused:' .. kind) == 1 end

-- Takes the claim out of the indexes of its present state. The caller puts it into those of the next state.
local function leave(key)
  local f = redis.call('HMGET', key, 'state', 'namespace', 'queue', 'wait_reason', 'slot')
  local state, namespace, queue = f[1], f[2], f[3]
  if not state then return end
  count(namespace, state, -1)
  if state == 'waiting' then
    redis.call('ZREM', prefix .. ':due', key)
    redis.call('ZREM', waits_key(key, f[4]), key)
    if f[4] == 'concurrency' then redis.call('ZREM', line_key(namespace, queue), key) end
    redis.call('HDEL', key, 'due_at', 'wait_reason', 'wait_detail')
  elseif state == 'pending' then
    redis.call('ZREM', prefix .. ':published:' .. queue, key)
    redis.call('ZREM', ahead_key(namespace, queue), key)
  else
    redis.call('ZREM', prefix .. ':leases', key)
    if f[5] then count(namespace, 'slots', -1) end
    redis.call('HDEL', key, 'token', 'lease_until', 'open', 'slot')
  end
end

local function enter(key, state)
  redis.call('HSET', key, 'state', state)
  count(field(key, 'namespace'), state, 1)
end

-- Returns the wake-up of this claim; the caller of the script publishes it. Every job passes here at least once, so
-- this function reads all fields with one command.
local function to_pending(key)
  leave(key)
  local f = redis.call('HMGET', key, 'id', 'kind', 'queue', 'args', 'namespace', 'trace')
  local at, queue = integer(now), f[3]
  redis.call('HSET', key, 'state', 'pending', 'published_at', at)
  redis.call('HINCRBY', prefix .. ':count:' .. f[5], 'pending', 1)
  redis.call('ZADD', prefix .. ':published:' .. queue, at, key)
  redis.call('ZADD', ahead_key(f[5], queue), at, key)
  redis.call('SADD', prefix .. ':queues', queue)
  return { key, f[1], f[2], queue, f[4], at, f[5], f[6] or '' }
end

-- `due_at` is false for a claim that waits for an event.
local function to_waiting(key, reason, due_at, detail)
  leave(key)
  redis.call('HDEL', key, 'republished') -- its last message has reached a worker and did not kill it
  enter(key, 'waiting')
  redis.call('HSET', key, 'wait_reason', reason, 'wait_detail', detail or '')
  if due_at then
    redis.call('HSET', key, 'due_at', integer(due_at))
    redis.call('ZADD', prefix .. ':due', integer(due_at), key)
  end
  redis.call('SADD', prefix .. ':reasons', reason)
  redis.call('ZADD', waits_key(key, reason), number(field(key, 'enqueued_at')), key)
  redis.call('SADD', prefix .. ':reasons', reason)
end

-- A worker does not understand the claim: another release wrote it. `dialect` is how the worker understands the kind.
-- The claim waits for a worker with a dialect that is not in the claim's `strange_to`.
local function to_version(key, dialect)
  leave(key)
  local strange_to = field(key, 'strange_to')
  if not strange_to then
    strange_to = dialect
  elseif not string.find(',' .. strange_to .. ',', ',' .. dialect .. ',', 1, true) then
    strange_to = strange_to .. ',' .. dialect
  end
  redis.call('HDEL', key, 'republished')
  redis.call('HSET', key, 'strange_to', strange_to, 'wait_reason', 'version', 'wait_detail', '')
  enter(key, 'waiting')
  redis.call('ZADD', waits_key(key, 'version'), number(field(key, 'enqueued_at')), key)
  redis.call('SADD', prefix .. ':versions', field(key, 'kind') .. '|' .. strange_to)
end

-- `slot` is false for the siblings of a batch: a batch counts once against its namespace's cap.
local function to_running(key, token, lease, slot)
  leave(key)
  enter(key, 'running')
  redis.call('HSET', key, 'token', token, 'lease_until', integer(now + lease), 'started_at', integer(now))
  redis.call('HDEL', key, 'republished', 'strange_to')
  if slot then
    redis.call('HSET', key, 'slot', '1')
    count(field(key, 'namespace'), 'slots', 1)
  end
  redis.call('ZADD', prefix .. ':leases', integer(now + lease), key)
end

-- Puts a claim into its line: live before dream, then the oldest first. `position` (below 1,024) orders the claims that
-- one request asks for. Of a long backlog every job passes here, so this function reads all fields with one command.
local function to_line(key, position)
  leave(key)
  local f = redis.call('HMGET', key, 'namespace', 'queue', 'urgency', 'enqueued_at')
  local namespace, queue = f[1], f[2]
  redis.call('HDEL', key, 'republished')
  redis.call('HSET', key, 'state', 'waiting', 'wait_reason', 'concurrency', 'wait_detail', '')
  redis.call('HINCRBY', prefix .. ':count:' .. namespace, 'waiting', 1)
  redis.call('ZADD', prefix .. ':waits:concurrency:' .. namespace, f[4], key)
  local patient = f[3] and f[3] ~= '' and f[3] ~= 'live'
  local place = number(f[4]) + (patient and BEHIND or 0) + (position or 0) / 1024
  redis.call('ZADD', line_key(namespace, queue), string.format('%.4f', place), key)
  redis.call('ZADD', prefix .. ':lines', 'NX', integer(now), namespace)
  redis.call('SADD', prefix .. ':lines:' .. namespace, queue)
end

-- How many more wake-ups of the namespace may be on their way in the queue: with its runs they are never more than its
-- cap, so that each finds a slot, and never more than AHEAD, so that the claims of other namespaces come soon.
-- A worker of the release before leaves claims in `ahead` that it has begun; they are removed here. One claim that is
-- pending is enough: when its run ends, `fill` looks again.
local function room(namespace, queue)
  local most = math.min(AHEAD, cap_of(namespace) - number(redis.call('HGET', prefix .. ':count:' .. namespace, 'slots')))
  local ahead = ahead_key(namespace, queue)
  local on_their_way = redis.call('ZCARD', ahead)
  while on_their_way > 0 and on_their_way >= most do
    local oldest = redis.call('ZRANGE', ahead, 0, 0)[1]
    if field(oldest, 'state') == 'pending' then break end
    redis.call('ZREM', ahead, oldest)
    on_their_way = on_their_way - 1
  end
  return most - on_their_way
end

-- Publishes the first claims of a line while there is room. Adds their wake-ups to `wakeups`.
local function fill(namespace, queue, wakeups)
  local line = line_key(namespace, queue)
  if redis.call('EXISTS', line) == 0 then return end
  for _ = 1, room(namespace, queue) do
    local key
    repeat -- keys whose claims left the line unnoticed are skipped: deleted by hand, or by the release before
      key = redis.call('ZPOPMIN', line)[1]
    until not key or field(key, 'wait_reason') == 'concurrency'
    if not key then break end
    table.insert(wakeups, to_pending(key))
  end
  if redis.call('EXISTS', line) == 1 then return end
  redis.call('SREM', prefix .. ':lines:' .. namespace, queue)
  if redis.call('EXISTS', prefix .. ':lines:' .. namespace) == 0 then
    redis.call('ZREM', prefix .. ':lines', namespace)
  end
end

-- The same for all lines of a namespace, after a run has ended or a claim has left the state `pending`. One free slot
-- lets one claim of each line go, because workers may consume only some of the queues. A claim that comes too late for
-- the slot returns to the head of its line.
local function fill_lines(namespace, wakeups)
  for _, queue in ipairs(redis.call('SMEMBERS', prefix .. ':lines:' .. namespace)) do fill(namespace, queue, wakeups) end
end

local full = {} -- lines without room: a script that asks for many jobs looks once

-- The claim could run now: it becomes pending, or stands in line. Returns its wake-up, or false.
local function ready(key, position)
  local f = redis.call('HMGET', key, 'namespace', 'queue')
  local line = line_key(f[1], f[2])
  full[line] = full[line] or room(f[1], f[2]) <= 0
  if not full[line] then return to_pending(key) end
  to_line(key, position)
  return false
end

-- Notes what the messages of this job carry on from its first message: its parent, and the caller's headers.
local function trace(key, request)
  if request.trace then redis.call('HSETNX', key, 'trace', request.trace) end
end

-- The ids of the jobs that the claim's present or next run serves, as a set.
local function ids_of(key)
  local f = redis.call('HMGET', key, 'id', 'also')
  local ids = { [f[1]] = true }
  for also in string.gmatch(f[2] or '', '[^,]+') do ids[also] = true end
  return ids
end

-- Creates the claim's fields from a request (a JSON object); the caller then moves the claim into a state.
local function create(key, request)
  redis.call('HSET', key, 'id', request.id, 'kind', request.kind, 'namespace', request.namespace, 'queue', request.queue,
    'scope', request.scope, 'args', request.args, 'version', request.version, 'enqueued_at', integer(now))
  trace(key, request)
  index_id(key, request.kind, request.id)
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

-- The rerun has the arguments of its newest request: values outside the scope may differ between requests.
local function args_of_rerun(key)
  local args = field(key, 'rerun_args')
  if not args then return end -- the release before has made the claim
  redis.call('HSET', key, 'args', args)
  redis.call('HDEL', key, 'rerun_args')
end

-- A run that waits gives its flags back to the next run. If a rerun was asked for, the next run serves its id too.
local function flags_from_run(key)
  local f = redis.call('HMGET', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'also')
  merge(key, f[1], f[2], f[3])
  redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id')
  if f[4] then
    redis.call('HSET', key, 'also', f[5] and (f[5] .. ',' .. f[4]) or f[4])
    args_of_rerun(key)
  end
end

local function parked_key(key) return prefix .. ':parked:' .. string.sub(key, #prefix + 6) end

local function delivery_key(id) return prefix .. ':delivery:' .. id end

-- The wake-up of a delivery whose runs have ended; with this message Celery accounts for the delivery.
local function settlement(id)
  local f = redis.call('HMGET', delivery_key(id), 'kind', 'queue', 'args', 'published_at', 'namespace', 'options',
    'status', 'job_id')
  return { '', id, f[1], f[2], f[3], f[4], f[5], '', f[6], f[7], f[8] }
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

-- Ends the claim's run and settles the deliveries that are parked for it. A rerun that was asked for puts the claim into
-- its line, which the caller fills; otherwise the claim is deleted and leaves a marker.
local function conclude(key, status, wakeups, own)
  local id, ids = field(key, 'id'), ids_of(key)
  settle_parked(key, ids, status, id, wakeups, own)
  forget_ids(field(key, 'kind'), ids)
  local rerun = field(key, 'rerun_id')
  if rerun then
    redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'also', 'errors', 'crashes', 'retries',
      'failing_since', 'error', 'trace')
    redis.call('HSET', key, 'id', rerun, 'enqueued_at', integer(now))
    args_of_rerun(key)
    to_line(key)
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
