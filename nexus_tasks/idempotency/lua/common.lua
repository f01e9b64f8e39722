-- common: the functions that the other scripts of this folder share, and the list of all keys of claims in Redis.
-- The loader (`_sources` in claims.py) puts this text in front of each script. This text alone returns nothing.
-- A claim is the record of a job in Redis. KEYS are the keys of claims. ARGV[1] is the prefix, with which every key
-- begins. Times are milliseconds since the epoch, by the clock of the Redis server.
-- A wake-up is the Celery message of a claim. A script returns a wake-up as the list {claim key, job id, kind, queue,
-- args, published_at, namespace, trace}. When the runs of a canvas delivery (see below) have ended, its wake-up has an
-- empty claim key and an empty trace. The list then goes on with {options, status, id of the job that did the work}.
--
-- The keys of claims:
--
--   <prefix>:job:<kind>:<hash>       hash    the claim. It has these fields:
--                                            state: waiting, pending (a message is on its way) or running;
--                                            id (of the job), kind, namespace, queue, scope, args, version;
--                                            force, reasons, urgency: the merged flags of the next run;
--                                            run_force, run_reasons, run_urgency: the flags of the current run;
--                                            errors, crashes, retries, failing_since;
--                                            token: its first part names the process that has the lease;
--                                            lease_until, started_at;
--                                            open: another run may still take this running claim along;
--                                            slot: this running claim counts against the namespace's cap;
--                                            worker: the worker of the current or last run (JSON);
--                                            error: type and text of the error of the last run, if it failed;
--                                            due_at, wait_reason, wait_detail;
--                                            strange_to: dialects of workers that did not understand the claim,
--                                            separated by commas. A dialect is the release's version of the kind;
--                                            rerun_id, rerun_args, rerun_queue, rerun_trace: of the rerun that was
--                                            asked for;
--                                            also: ids of further jobs that the run serves, separated by commas;
--                                            enqueued_at, published_at;
--                                            republished: how often a lost message of the claim was sent again;
--                                            trace: root_id, parent_id and headers of the job's messages (JSON)
--   <prefix>:done:<kind>:<hash>      string  the done marker, "<job id> <status>" of the last run. It lasts for 15
--                                            minutes, with the status `dropped` for 24 hours
--   <prefix>:due                     zset    waiting claims by due_at, except claims that wait for an event. These
--                                            wait for a free slot (reason `concurrency`), for the end of a pause
--                                            (`pause`), or for a worker that understands them (`version`)
--   <prefix>:leases                  zset    running claims by lease_until
--   <prefix>:published:<queue>       zset    pending claims by published_at. sweep_lost.lua adds the time by which it
--                                            has made the claim's grace longer
--   <prefix>:queues                  set     queues that ever had a pending claim
--   <prefix>:delivered:<queue>       string  the watermark: published_at of the newest message that a worker has begun
--   <prefix>:ids:<kind>:<start>      hash    job id -> the hash in its claim's key, for ids in id, rerun_id and also.
--                                            <start> is the first 3 bytes of the ids: Redis keeps small hashes compact
--   <prefix>:kinds                   set     kinds that ever had a claim
--   <prefix>:reasons                 set     reasons for which a claim ever waited
--   <prefix>:count:<namespace>       hash    the number of claims in each state, and `slots`: the number of runs that
--                                            count against the namespace's cap
--   <prefix>:waits:<reason>:<whose>  zset    claims that wait for this reason, by enqueued_at. <whose> is the kind for
--                                            the reason `pause`, "<kind>|<strange_to>" for `version`, and the
--                                            namespace for every other reason
--   <prefix>:woken:<reason>:<namespace>
--                                    string  when the claims that waited for this reason were last woken. It lasts for
--                                            a day. A run that began before and now waits for the reason is due at once
--   <prefix>:versions                set     each "<kind>|<strange_to>" for which claims wait
--   <prefix>:cap:<namespace>         string  how many runs the namespace may have at a time, as `begin` or `cap` last
--                                            wrote it. Without this key the cap is 16
--   <prefix>:paused:<kind>           hash    the reason and the time of the pause (`reason`, `since`). While it exists,
--                                            no job of the kind begins
--   <prefix>:pauses                  set     kinds that are paused
--   <prefix>:storage                 string  the identity of the database that the claims belong to
--   <prefix>:reconcile:<kind>        string  the cursor at which the next round of reconcile goes on among the rows
--                                            that want jobs of the kind
--   <prefix>:clock                   string  the server's time in ms, as the last sweep wrote it (see sweep_clock.lua)
--   <prefix>:held                    hash    worker -> how many of its threads are held by runs over their limit (JSON)
--   <prefix>:totals                  hash    counters for metrics: how often claims of a kind passed from state to state.
--                                            Its fields are listed at `total`. Model calls are counted there too, see
--                                            `Claims.count_model_call`
--   <prefix>:figures                 string  figures for metrics that a process has read a moment ago (see figures.lua)
--   <prefix>:checked                 string  the cursor of SCAN at which the next check of the counters goes on
--   <prefix>:answer:<hash>           string  the answer to an HTTP request, under the hash of its token and idempotency
--                                            key (JSON). It lasts for 24 hours; while the request runs, for 60 s
--   <prefix>:quarantine              list    messages that no worker could read (JSON), the newest first
--   <prefix>:quarantined             string  how many messages were ever moved there
--   <prefix>:sweeping, <prefix>:reconciling, <prefix>:checking, <prefix>:repairing
--                                    string  locks: one worker at a time sweeps, reconciles, checks the counters, or
--                                            repairs the indexes after it met a key of a wrong type
--   <prefix>:damaged:<name>          any     the key <prefix>:<name> of a wrong type, which another program had made, or
--                                            the fields of a hash that had values which no release writes
--   <prefix>:mended                  set     keys and fields with such values, which the sweep has not logged yet
--   <prefix>:tick:<tick>:<slot>      string  exists when the tick of beat's schedule is done for this slot of time
--
-- A namespace has at most 8 wake-ups on their way in each queue, so that its backlog does not hold up other namespaces
-- (see `room`). Its other claims that could run are in the line of the queue. A claim in a line waits for the reason
-- `concurrency` and has no due_at. `fill` publishes the first claims of a line when there is room.
--
--   <prefix>:line:<namespace>|<queue>   zset  a line: claims of urgency `live` before others, then by enqueued_at
--   <prefix>:ahead:<namespace>|<queue>  zset  pending claims of the namespace in the queue, by published_at,
--                                             without those that were published three times or more
--   <prefix>:lines                      zset  namespaces that have lines, by when the sweep last looked at their lines
--   <prefix>:lines:<namespace>          set   queues in which the namespace has a line
--
-- A canvas delivery is a message that Celery itself waits for, because it has a chord, a link or the like. Until the
-- runs that it waits for have ended, the delivery is parked: each of its claims lists it. Then the delivery is settled:
-- its outcome is known, and a message makes Celery account for it. A rerun is one more run, asked for during a run.
--
--   <prefix>:parked:<kind>:<hash>    hash    deliveries that wait for a run of this claim: their id -> the run's job id
--   <prefix>:delivery:<id>           hash    a delivery, until Celery has accounted for it. Its fields are kind,
--                                            namespace, queue, args, options (JSON); parts: how many runs it still
--                                            waits for; status and job_id: how the runs ended; published_at,
--                                            republished; taken: when a worker began to complete it
--   <prefix>:settle:<queue>          zset    the settle list: deliveries whose runs have ended, by published_at and
--                                            the added grace, as in `published`

local prefix = ARGV[1]
local DONE_SECONDS = 900
local DROPPED_SECONDS = 86400
local SETTLE_SECONDS = 7 * 86400 -- a settled delivery is kept for as long as Celery keeps a chord
local WOKEN_SECONDS = 86400 -- no run lasts longer
local DEFAULT_CAP = 16
local CAP_SECONDS = 86400
local DAMAGED_SECONDS = 30 * 86400
local PAUSED_SECONDS = 60 -- how long a cap of 0 is kept. A worker may write this cap just after the pause has ended
local AHEAD = 8 -- how many wake-ups of a namespace may be on their way in a queue
local SUSPECT = 2 -- a wake-up that was sent again so many times counts no longer as on its way
local URGENT = 'urgent' -- the urgency of claims that a caller waits for, and the queue that has their messages
local BEHIND = 2 ^ 42 -- ms, added to the place in line of claims that are not live; no time before 2109 is larger

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Returns a number, or 0 for a value that no release writes: text, `nan`, or a number of 16 digits or more.
local function number(value)
  local found = tonumber(value or 0)
  if not found or found ~= found or math.abs(found) >= 1e15 then return 0 end
  return found
end

local function integer(value) return string.format('%.0f', value) end

local function field(key, name) return redis.call('HGET', key, name) end

-- Takes a value that another program has written out of a hash, and keeps it for 30 days. The sweep logs it.
local function take_out(key, name, value)
  local aside = prefix .. ':damaged:' .. string.sub(key, #prefix + 2)
  if redis.call('TYPE', aside).ok ~= 'hash' then redis.call('DEL', aside) end
  redis.call('HSET', aside, name, value)
  redis.call('EXPIRE', aside, DAMAGED_SECONDS)
  redis.call('HDEL', key, name)
  redis.call('SADD', prefix .. ':mended', string.sub(key, #prefix + 2) .. ' ' .. name)
end

-- Adds to a number in a hash, and returns the sum. A value that is no number counts as 0.
local function add_to(key, name, by)
  local sum = redis.pcall('HINCRBY', key, name, by)
  if type(sum) == 'number' then return sum end
  if string.find(sum.err, 'not an integer') or string.find(sum.err, 'overflow') then
    take_out(key, name, redis.call('HGET', key, name))
  end
  return redis.call('HINCRBY', key, name, by)
end

local function done_key(key) return prefix .. ':done:' .. string.sub(key, #prefix + 6) end

-- Returns the job id and the status in the claim's done marker. The status `gone` says that the job did not find its
-- namespace. For such a marker nothing is returned: the namespace may exist by now, so a new request makes a new job.
local function done(key)
  local id, status = string.match(redis.call('GET', done_key(key)) or '', '^(%S+) (%S+)$')
  if status ~= 'gone' then return id, status end
end

local function line_key(namespace, queue) return prefix .. ':line:' .. namespace .. '|' .. queue end

local function cap_key(namespace) return prefix .. ':cap:' .. namespace end

local function woken_key(reason, namespace) return prefix .. ':woken:' .. reason .. ':' .. namespace end

-- Returns whether the namespace's claims that wait for the reason were woken after the claim's run had begun. The run
-- may have looked for what it waits for before this came, so it must look again. A time in the future was written
-- before the server's clock was set back.
local function woken(key, reason)
  local at = number(redis.call('GET', woken_key(reason, field(key, 'namespace'))))
  return at > 0 and at <= now and at >= number(field(key, 'started_at'))
end

local function set_cap(namespace, cap)
  redis.call('SET', cap_key(namespace), cap, 'EX', cap > 0 and CAP_SECONDS or PAUSED_SECONDS)
end

-- Every cap that a release writes is a whole number and expires. Another value must not stop the namespace.
local function cap_of(namespace)
  local cap = redis.call('GET', cap_key(namespace))
  if not cap or not string.find(cap, '^%d+$') then return DEFAULT_CAP end
  if cap == '0' and redis.call('TTL', cap_key(namespace)) < 0 then return DEFAULT_CAP end
  return number(cap)
end

-- Adds to a counter for metrics. Its name is `what`, the kind, and for some a detail:
--   asked|outcome       requests for jobs, by the outcome that claim.lua returns
--   ended|status        jobs that ended
--   waits|reason        how often claims began to wait for a time or an event, without waits in a line
--   crashes, resent     workers' deaths during a run; messages that were lost and sent again
--   retries, restored   failed runs that are tried again; jobs that Redis had lost and storage has asked for again
--   run_ms, run_le      of ended runs: milliseconds that they lasted; their number by bound (see `observe`)
--   wait_ms, wait_le    of begun runs: milliseconds since the job's request; their number by bound
local function total(what, kind, by, detail)
  local name = what .. '|' .. kind .. (detail and '|' .. detail or '')
  add_to(prefix .. ':totals', name, integer(by))
end

-- The bounds of the histograms, in ms. `BOUNDS` in monitoring/definitions.py is the same list.
local BOUNDS = { 100, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 600000, 3600000, 21600000, 86400000 }

-- Adds a duration to a histogram for metrics: to its sum, and to the number of durations up to the next bound.
local function observe(what, kind, since)
  local ms, bound = math.max(now - number(since), 0), 'inf'
  for i = 1, #BOUNDS do
    if ms <= BOUNDS[i] then
      bound = integer(BOUNDS[i])
      break
    end
  end
  total(what .. '_ms', kind, ms)
  total(what .. '_le', kind, 1, bound)
end

local function ahead_key(namespace, queue) return prefix .. ':ahead:' .. namespace .. '|' .. queue end

local added = {} -- what this script has added to sets: a script that makes many claims adds the same names again

-- Adds a member to a set that this script removes nothing from.
local function add_once(set, member)
  local both = set .. ' ' .. member
  if added[both] then return end
  added[both] = true
  redis.call('SADD', set, member)
end

local function ids_key(kind, id) return prefix .. ':ids:' .. kind .. ':' .. string.sub(id, 1, 3) end

-- Lets `Claims.find` find the claim by this job id.
local function index_id(key, kind, id)
  redis.call('HSET', ids_key(kind, id), id, string.sub(key, -64))
  add_once(prefix .. ':kinds', kind)
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
  if add_to(counts, what, by) <= 0 then redis.call('HDEL', counts, what) end
end

-- Returns the first claims of an index, up to a score, that are still in the state `is`. Removes other keys from the
-- index. The claims of these keys were deleted by hand, and such keys must not keep the other claims from being found.
local function upto(index, is, score, most)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGE', index, '-inf', integer(score), 'BYSCORE', 'LIMIT', 0, most)) do
    if field(key, 'state') == is then table.insert(found, key) else redis.call('ZREM', index, key) end
  end
  return found
end

-- Returns the claims that have waited longest for a reason. Removes claims that no longer wait for it from the index.
local function longest_waiting(reason, whose, most)
  local index, found = prefix .. ':waits:' .. reason .. ':' .. whose, {}
  for _, key in ipairs(redis.call('ZRANGE', index, 0, most - 1)) do
    if field(key, 'wait_reason') == reason then table.insert(found, key) else redis.call('ZREM', index, key) end
  end
  return found
end

local function is_paused(kind) return redis.call('EXISTS', prefix .. ':paused:' .. kind) == 1 end

-- Takes the claim out of the indexes of its present state. The caller puts it into the indexes of its next state.
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

-- Moves the claim into the state `pending`. Returns its wake-up, which the caller of the script publishes. Nearly
-- every job passes through this function, so it reads all fields with one command. `fresh` is the request of a claim
-- that this script makes: such a claim is in no index. Its fields are in `fresh.fields`. This function
-- writes them together with the state, because one command costs less than two.
local function to_pending(key, fresh)
  local f
  if fresh then
    f = { fresh.id, fresh.kind, fresh.queue, fresh.args, fresh.namespace, fresh.trace }
  else
    leave(key)
    f = redis.call('HMGET', key, 'id', 'kind', 'queue', 'args', 'namespace', 'trace')
  end
  local at, queue = integer(now), f[3]
  redis.call('HSET', key, 'state', 'pending', 'published_at', at, unpack(fresh and fresh.fields or {}))
  add_to(prefix .. ':count:' .. f[5], 'pending', 1)
  redis.call('ZADD', prefix .. ':published:' .. queue, at, key)
  redis.call('ZADD', ahead_key(f[5], queue), at, key)
  add_once(prefix .. ':queues', queue)
  return { key, f[1], f[2], queue, f[4], at, f[5], f[6] or '' }
end

-- Moves the claim into the state `waiting`. `due_at` is false when the claim waits for an event instead of a time.
local function to_waiting(key, reason, due_at, detail)
  leave(key)
  redis.call('HDEL', key, 'republished') -- the claim's last message has reached a worker and did not kill it
  enter(key, 'waiting')
  redis.call('HSET', key, 'wait_reason', reason, 'wait_detail', detail or '')
  if due_at then
    redis.call('HSET', key, 'due_at', integer(due_at))
    redis.call('ZADD', prefix .. ':due', integer(due_at), key)
  end
  redis.call('SADD', prefix .. ':reasons', reason)
  total('waits', field(key, 'kind'), 1, reason)
  redis.call('ZADD', waits_key(key, reason), number(field(key, 'enqueued_at')), key)
end

-- Lets the claim wait for the reason `version`, because a worker does not understand it: another release wrote it.
-- `dialect` is that worker's dialect of the kind. The function adds it to `strange_to`. The claim waits for a worker
-- whose dialect is not in `strange_to`.
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

-- Moves the claim into the state `running`. `slot` is false for the siblings of a batch, because the whole batch counts
-- as one run against the namespace's cap.
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

-- Puts the claim into its line. Claims of urgency `live` and `urgent` come first, then the others, each by age.
-- `position` (below 1,024) orders the claims that one call of claim.lua makes. Every job of a long backlog passes through
-- this function, so it reads all fields with one command. `fresh` is as in `to_pending`.
local function to_line(key, position, fresh)
  local f
  if fresh then
    f = { fresh.namespace, fresh.queue, fresh.urgency, integer(now) }
  else
    leave(key)
    f = redis.call('HMGET', key, 'namespace', 'queue', 'urgency', 'enqueued_at')
    redis.call('HDEL', key, 'republished')
  end
  local namespace, queue = f[1], f[2]
  redis.call('HSET', key, 'state', 'waiting', 'wait_reason', 'concurrency', unpack(fresh and fresh.fields or {}))
  add_to(prefix .. ':count:' .. namespace, 'waiting', 1)
  redis.call('ZADD', prefix .. ':waits:concurrency:' .. namespace, f[4], key)
  local patient = f[3] and f[3] ~= '' and f[3] ~= 'live' and f[3] ~= URGENT
  local place = number(f[4]) + (patient and BEHIND or 0) + (position or 0) / 1024
  local line = line_key(namespace, queue)
  redis.call('ZADD', line, string.format('%.4f', place), key)
  if fresh and added[line] then return end -- claim.lua, which makes claims, fills no line: the line is still in the lists
  added[line] = true
  redis.call('ZADD', prefix .. ':lines', 'NX', integer(now), namespace)
  redis.call('SADD', prefix .. ':lines:' .. namespace, queue)
end

-- Returns how many more wake-ups of the namespace may be sent into the queue. There are two limits. Wake-ups on their
-- way and runs are together never more than the namespace's cap, so that each wake-up finds a slot. Wake-ups are never
-- more than AHEAD, so that the claims of other namespaces come soon. A slot is kept for each urgent wake-up on its way.
-- A worker of the release before leaves claims in `ahead` that it has begun. This function removes them until it finds
-- a claim that is pending. It need not remove more: when the run of that claim ends, `fill` calls this function again.
local function room(namespace, queue)
  local most = cap_of(namespace) - number(redis.call('HGET', prefix .. ':count:' .. namespace, 'slots'))
  if queue ~= URGENT then most = most - redis.call('ZCARD', ahead_key(namespace, URGENT)) end
  most = math.min(AHEAD, most)
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

-- Makes the first claims of a line pending while there is room. Adds their wake-ups to `wakeups`.
local function fill(namespace, queue, wakeups)
  local line = line_key(namespace, queue)
  if redis.call('EXISTS', line) == 0 then return end
  for _ = 1, room(namespace, queue) do
    local key
    repeat -- skip keys whose claims are deleted, or that the release before made go on and left in the line
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

-- Calls `fill` for all lines of a namespace, after a run has ended or a claim has left the state `pending`. One free
-- slot makes one claim of each line pending, because workers may consume only some of the queues. Only one of these
-- claims gets the slot. `begin` puts each of the others back at the head of its line. Urgent claims come first: while
-- their wake-ups are on their way, `room` gives their slots to no other line.
local function fill_lines(namespace, wakeups)
  fill(namespace, URGENT, wakeups)
  for _, queue in ipairs(redis.call('SMEMBERS', prefix .. ':lines:' .. namespace)) do
    if queue ~= URGENT then fill(namespace, queue, wakeups) end
  end
end

local full = {} -- lines without room, so that a script that asks for many jobs looks at each line once

-- Lets a claim go on that could run now. When its line has room, the claim becomes pending, and its wake-up is
-- returned. Otherwise the claim gets into its line, and false is returned. `fresh` is as in `to_pending`.
local function ready(key, position, fresh)
  local f = fresh and { fresh.namespace, fresh.queue } or redis.call('HMGET', key, 'namespace', 'queue')
  local line = line_key(f[1], f[2])
  full[line] = full[line] or room(f[1], f[2]) <= 0
  if not full[line] then return to_pending(key, fresh) end
  to_line(key, position, fresh)
  return false
end

-- Writes the parent and the caller's headers of the job's first message into the claim. All later messages of the job
-- have them too. A worker adds headers to the trace of a first message without headers (see run_span.py).
local function trace(key, request)
  if not request.trace then return end
  local known = field(key, 'trace')
  if not (known and string.find(known, '"headers"', 1, true)) then redis.call('HSET', key, 'trace', request.trace) end
end

-- Returns the ids of the jobs that the claim's present or next run serves, as a set.
local function ids_of(key)
  local f = redis.call('HMGET', key, 'id', 'also')
  local ids = { [f[1]] = true }
  for also in string.gmatch(f[2] or '', '[^,]+') do ids[also] = true end
  return ids
end

-- Returns the fields of a new claim, made from a request (a JSON object).
local function fields_of(request)
  local fields = { 'id', request.id, 'kind', request.kind, 'namespace', request.namespace, 'queue', request.queue, 'scope',
    request.scope, 'args', request.args, 'version', request.version, 'enqueued_at', integer(now) }
  for _, name in ipairs({ 'force', 'reasons', 'urgency', 'trace' }) do
    if request[name] and request[name] ~= '' then
      table.insert(fields, name)
      table.insert(fields, request[name])
    end
  end
  return fields
end

-- Creates the claim's fields from a request; the caller then moves the claim into a state.
local function create(key, request)
  redis.call('HSET', key, unpack(fields_of(request)))
  index_id(key, request.kind, request.id)
end

-- Merges a request's flags into the flags of the next run. `force` is set when one of the two has it, the reasons of
-- both are kept, and the urgency `urgent` wins, then `live`. Most requests change no flag. Then the function writes
-- nothing, because each write also goes to Redis' append-only file. `known` are the claim's own three flags, if the
-- caller has read them.
local function merge(key, force, reasons, urgency, known)
  local f = known or redis.call('HMGET', key, 'force', 'reasons', 'urgency')
  if force == '1' and f[1] ~= '1' then redis.call('HSET', key, 'force', '1') end
  local higher = urgency == URGENT or (urgency == 'live' and f[3] ~= URGENT)
  if urgency ~= f[3] and (higher or (urgency and urgency ~= '' and not f[3])) then
    redis.call('HSET', key, 'urgency', urgency)
  end
  local all = f[2] or ''
  for reason in string.gmatch(reasons or '', '[^,]+') do
    if not string.find(',' .. all .. ',', ',' .. reason .. ',', 1, true) then
      all = all == '' and reason or all .. ',' .. reason
    end
  end
  if all ~= (f[2] or '') then redis.call('HSET', key, 'reasons', all) end
end

-- Makes the merged flags the flags of the run that starts now. The next run starts with no flags.
local function flags_to_run(key)
  local f = redis.call('HMGET', key, 'force', 'reasons', 'urgency')
  redis.call('HSET', key, 'run_force', f[1] or '', 'run_reasons', f[2] or '', 'run_urgency', f[3] or '')
  redis.call('HDEL', key, 'force', 'reasons', 'urgency')
end

-- Gives the rerun the arguments of its newest request, because values outside the scope may differ between requests.
local function args_of_rerun(key)
  local args = field(key, 'rerun_args')
  if not args then return end -- the release before has written the rerun's request
  redis.call('HSET', key, 'args', args)
  redis.call('HDEL', key, 'rerun_args')
end

-- Moves the claim to another queue. The claim leaves the indexes of the old queue. When it was pending or in a line, the
-- caller must then call `ready`.
local function change_queue(key, queue)
  local f = redis.call('HMGET', key, 'state', 'namespace', 'queue', 'wait_reason')
  if f[1] == 'pending' then
    redis.call('ZREM', prefix .. ':published:' .. f[3], key)
    redis.call('ZREM', ahead_key(f[2], f[3]), key)
    redis.call('HDEL', key, 'republished') -- this counts the messages in the old queue
  elseif f[4] == 'concurrency' then
    redis.call('ZREM', line_key(f[2], f[3]), key)
  end
  redis.call('HSET', key, 'queue', queue)
end

-- Merges the flags of a run that is cut off or waits into the flags of the next run. If a rerun was asked for, the next
-- run serves the rerun's id too.
local function flags_from_run(key)
  local f = redis.call('HMGET', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'also', 'rerun_queue')
  merge(key, f[1], f[2], f[3])
  redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'rerun_queue', 'rerun_trace')
  if f[6] == URGENT then redis.call('HSET', key, 'queue', URGENT) end
  if f[4] then
    redis.call('HSET', key, 'also', f[5] and (f[5] .. ',' .. f[4]) or f[4])
    args_of_rerun(key)
  end
end

local function parked_key(key) return prefix .. ':parked:' .. string.sub(key, #prefix + 6) end

local function delivery_key(id) return prefix .. ':delivery:' .. id end

-- Returns the wake-up of a delivery whose runs have ended. This message makes Celery account for the delivery.
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

-- Notes that one of the runs that a delivery waits for has ended. The status `dead` of one run is the status of the
-- delivery. After the last run the delivery is put into the settle list, and its wake-up is added to `wakeups`. The
-- delivery `own` gets no wake-up, because the worker that ended the run completes it itself.
local function settle(id, status, job_id, wakeups, own)
  local record = delivery_key(id)
  if redis.call('EXISTS', record) == 0 then return end -- revoked
  if status == 'dead' or not redis.call('HGET', record, 'status') then
    redis.call('HSET', record, 'status', status, 'job_id', job_id)
  end
  if add_to(record, 'parts', -1) > 0 then return end
  local queue = redis.call('HGET', record, 'queue')
  redis.call('HSET', record, 'published_at', integer(now))
  redis.call('EXPIRE', record, SETTLE_SECONDS)
  redis.call('ZADD', prefix .. ':settle:' .. queue, integer(now), id)
  redis.call('SADD', prefix .. ':queues', queue)
  if id ~= own then table.insert(wakeups, settlement(id)) end
end

-- Settles the deliveries that are parked for the job ids `ids` (a set). With nil it settles all that are parked with
-- the claim.
local function settle_parked(key, ids, status, job_id, wakeups, own)
  local parked = redis.call('HGETALL', parked_key(key))
  for i = 1, #parked, 2 do
    if not ids or ids[parked[i + 1]] then
      redis.call('HDEL', parked_key(key), parked[i])
      settle(parked[i], status, job_id, wakeups, own)
    end
  end
end

-- Writes down the request's canvas delivery. The caller then parks or settles each part of the delivery. When a
-- delivery's id is used again (Celery may continue a chain twice), the delivery starts over.
local function record(request)
  local d = request.delivery
  if not d.first then return end
  forget(d.id)
  redis.call('HSET', delivery_key(d.id), 'kind', request.kind, 'namespace', request.namespace, 'queue', request.queue,
    'args', request.args, 'options', d.options, 'parts', d.parts)
end

-- Parks the request's canvas delivery, if it has one, with the claim. `run` is the id of the job that it waits for.
local function park(key, request, run)
  if not request.delivery then return end
  record(request)
  redis.call('HSET', parked_key(key), request.delivery.id, run)
end

-- Ends the claim's run, and settles the deliveries that are parked for the run. When a rerun was asked for, the claim
-- gets into its line, and the caller fills the line. Otherwise the claim is deleted and a done marker is written.
local function conclude(key, status, wakeups, own)
  local id, ids = field(key, 'id'), ids_of(key)
  local run = redis.call('HMGET', key, 'kind', 'slot', 'started_at')
  total('ended', run[1], 1, status)
  if run[2] then observe('run', run[1], run[3]) end
  settle_parked(key, ids, status, id, wakeups, own)
  forget_ids(field(key, 'kind'), ids)
  local rerun = field(key, 'rerun_id')
  if rerun then
    local queue = field(key, 'rerun_queue') or field(key, 'queue') -- the release before writes no `rerun_queue`
    local traced = field(key, 'rerun_trace')
    redis.call('HDEL', key, 'run_force', 'run_reasons', 'run_urgency', 'rerun_id', 'rerun_queue', 'also', 'errors',
      'crashes', 'retries', 'failing_since', 'error', 'trace', 'rerun_trace')
    redis.call('HSET', key, 'id', rerun, 'enqueued_at', integer(now), 'queue', queue)
    if traced then redis.call('HSET', key, 'trace', traced) end
    args_of_rerun(key)
    to_line(key)
    return
  end
  leave(key)
  redis.call('DEL', key)
  redis.call('SET', done_key(key), id .. ' ' .. status, 'EX', DONE_SECONDS)
end

-- Moves a queue's watermark to the published_at of a message that arrived. A time in the future is a fault of the message
-- or of an earlier clock: it would hide every later loss.
local function note_delivery(watermark, published_at)
  local at = number(published_at)
  if at <= now and at > number(redis.call('GET', watermark)) then redis.call('SET', watermark, integer(at)) end
end

-- Returns a time. A message that was published to the queue up to this time and that no worker has begun is lost. It is
-- older than `age` (the time that every message has to arrive). And the queue is empty, or a worker has already
-- begun a later message.
local function lost_before(queue, empty, age)
  if empty then return now - age end
  local delivered = number(redis.call('GET', prefix .. ':delivered:' .. queue))
  if delivered > now then delivered = 0 end -- the server's clock was set back, so the watermark is of no use
  return math.min(now - age, delivered - 1)
end
