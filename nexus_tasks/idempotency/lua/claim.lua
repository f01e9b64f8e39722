-- claim: makes claims, or merges requests into existing claims, because a producer asks for jobs.
-- KEYS: one claim per request.
-- ARGV: 1 the key prefix, 2 a text that no other call has, 3 the number of templates. Then for each template its kind
--       and queue, the key of the Redis list that is this queue, and the text of a message with slots. Then for each
--       request two values:
--       - the request, a JSON object with id, kind, namespace, queue, scope, args, version, force, reasons, urgency,
--         delay (ms), wait_reason, while_running (drop or rerun), immutable, anew, live_ends_wait, and for a canvas
--         delivery also `delivery`: its id, options, parts (for how many requests it stands) and first (the first part)
--       - the body of its message in base64, or '' when the script pushes no message
-- With a body, the script fills in the template of the request's kind and queue, and pushes the message of a new job
-- into the list. Without a body, the caller publishes the returned wake-up (see common.lua).
-- Each part of a canvas delivery is parked until the run that serves it has ended. If that run has ended already, the
-- part is settled at once.
-- Returns {now (ms), per request {outcome, job id, wake-up to publish or false}}. The outcomes:
--   ENQUEUED  there was no claim, so the request made a new job. Without a wake-up the new job waits, or the script has
--             pushed its message
--   MERGED    the claim has not started, so its job serves this request too
--   RERUN     the claim runs, and one more run follows
--   RUNNING   the claim runs, and this run serves the request: the kind's input cannot change (while_running is drop),
--             or the request is `anew` without force and reasons
--   DONE      a job of a kind whose input cannot change ended less than 15 minutes ago, and serves the request

-- Most requests for work that is asked for already add nothing to the claim: no flag, no reason, no other arguments. Such
-- a request is answered here, because making the functions of common.lua takes longer than the answer itself.
local is_new = false -- whether this script has already seen that there is no claim
if #KEYS == 1 then
  local request = cjson.decode(ARGV[#ARGV - 1])
  local f = redis.call('HMGET', KEYS[1], 'state', 'id', 'args', 'urgency', 'wait_reason')
  is_new = not f[1]
  local not_begun = f[1] == 'pending' or (f[1] == 'waiting' and f[5] == 'concurrency')
  local adds = request.delivery or request.force ~= '' or request.reasons ~= '' or request.urgency == 'urgent'
  if not_begun and not adds and request.args == f[3] and (request.urgency == '' or request.urgency == f[4]) then
    redis.pcall('HINCRBY', ARGV[1] .. ':totals', 'asked|' .. request.kind .. '|merged', 1) -- `total` of common.lua
    local clock = redis.call('TIME')
    return { string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)), { { 'MERGED', f[2], false } } }
  end
end

-- [common.lua]

local function claim(key, request, position)
  local f = is_new and {}
    or redis.call('HMGET', key, 'state', 'id', 'force', 'reasons', 'urgency', 'args', 'wait_reason', 'due_at', 'queue')
  local state, id, flags, args = f[1], f[2], { f[3], f[4], f[5] }, f[6]
  local delay = number(request.delay)
  if not state then
    local ended, status = done(key)
    if ended and request.immutable and not request.anew and status ~= 'dropped' then
      local wakeups = {}
      if request.delivery then
        record(request)
        settle(request.delivery.id, status, ended, wakeups, '')
      end
      return { 'DONE', ended, wakeups[1] or false }
    end
    park(key, request, request.id)
    if delay > 0 then
      create(key, request)
      to_waiting(key, request.wait_reason, now + delay, '')
      return { 'ENQUEUED', request.id, false }
    end
    index_id(key, request.kind, request.id)
    request.fields = fields_of(request)
    return { 'ENQUEUED', request.id, ready(key, position, request) }
  end
  if state == 'running' and request.while_running == 'drop' then
    park(key, request, id)
    return { 'RUNNING', id, false }
  end
  merge(key, request.force, request.reasons, request.urgency, flags)
  if state == 'running' then
    if request.anew and request.force == '' and request.reasons == '' then return { 'RUNNING', id, false } end
    if redis.call('HSETNX', key, 'rerun_id', request.id) == 1 then
      index_id(key, request.kind, request.id)
      if request.trace then redis.call('HSET', key, 'rerun_trace', request.trace) end
    end
    redis.call('HSET', key, 'rerun_args', request.args)
    if request.urgency == URGENT then
      redis.call('HSET', key, 'rerun_queue', request.queue)
    else
      redis.call('HSETNX', key, 'rerun_queue', request.queue)
    end
    park(key, request, field(key, 'rerun_id'))
    return { 'RERUN', field(key, 'rerun_id'), false }
  end
  -- Values outside the scope may differ between requests: the newest request decides. Reconcile (`anew`) decides nothing.
  if args ~= request.args and not request.anew then redis.call('HSET', key, 'args', request.args) end
  park(key, request, id)
  -- An urgent request makes a claim urgent. A message that is on its way stays in its queue, and does nothing when a
  -- worker receives it after the urgent message.
  if request.urgency == URGENT and f[9] ~= request.queue and not request.anew then
    change_queue(key, request.queue)
    if state == 'pending' or f[7] == 'concurrency' then return { 'MERGED', id, ready(key) } end
  end
  if state == 'waiting' then
    local reason, due = f[7], f[8] and number(f[8]) or math.huge
    -- A live request makes a claim in a line live. The claim moves in front of the claims that are not live.
    local soon = (request.urgency == 'live' or request.urgency == URGENT) and not request.anew
    if reason == 'concurrency' and soon then
      local line = line_key(request.namespace, f[9])
      local place = number(redis.call('ZSCORE', line, key))
      if place >= BEHIND then redis.call('ZADD', line, string.format('%.4f', place - BEHIND), key) end
    end
    -- A request that is due sooner shortens a delay that a caller chose. It shortens no other wait.
    if reason == 'delay' and now + delay < due then
      due = now + delay
      redis.call('HSET', key, 'due_at', integer(due))
      redis.call('ZADD', prefix .. ':due', integer(due), key)
    end
    -- The kind names one wait reason that a live request ends, such as a digest's wait for its message batch.
    local ends = request.live_ends_wait or ''
    if ends ~= '' and reason == ends and soon then due = now end
    if due <= now then return { 'MERGED', id, ready(key) } end
  end
  return { 'MERGED', id, false }
end

local SHOWN = 1024 -- bytes of the arguments that Flower and the log show: Celery's own limit

-- Fills in the slots of a template. A slot is a name between two bytes 1, which no JSON text contains.
local function filled(text, values)
  local parts, from = {}, 1
  while true do
    local open = string.find(text, '\1', from, true)
    if not open then break end
    local close = string.find(text, '\1', open + 1, true)
    table.insert(parts, string.sub(text, from, open - 1))
    table.insert(parts, values[string.sub(text, open + 1, close - 1)])
    from = close + 1
  end
  table.insert(parts, string.sub(text, from))
  return table.concat(parts)
end

-- The arguments as they are shown: cut before a character of UTF-8, never within one.
local function shown(args)
  local last = math.min(#args, SHOWN)
  while last < #args and string.find(string.sub(args, last + 1, last + 1), '[\128-\191]') do last = last - 1 end
  return string.sub(args, 1, last)
end

local function message(text, wakeup, body, tag)
  local id = cjson.encode(wakeup[2])
  local traced = wakeup[8] ~= '' and cjson.decode(wakeup[8]) or {}
  local headers = {}
  for name, value in pairs(traced.headers or {}) do
    table.insert(headers, cjson.encode(name) .. ': ' .. cjson.encode(value) .. ', ')
  end
  return filled(text, {
    id = id,
    root = traced.root_id and cjson.encode(traced.root_id) or id,
    parent = traced.parent_id and cjson.encode(traced.parent_id) or 'null',
    headers = table.concat(headers),
    published = '"' .. wakeup[6] .. '"',
    key = cjson.encode(wakeup[1]),
    shown = cjson.encode(shown(wakeup[5])),
    body = '"' .. body .. '"',
    tag = '"' .. tag .. '"',
  })
end

local templates, at = {}, 4
for _ = 1, number(ARGV[3]) do
  templates[ARGV[at] .. '|' .. ARGV[at + 1]] = { list = ARGV[at + 2], text = ARGV[at + 3] }
  at = at + 4
end
local answers, asked = {}, {}
for i, key in ipairs(KEYS) do
  local request, body = cjson.decode(ARGV[at]), ARGV[at + 1]
  local answer = claim(key, request, i % 1024)
  if body ~= '' and answer[1] == 'ENQUEUED' and answer[3] then
    local template = templates[request.kind .. '|' .. request.queue]
    redis.call('LPUSH', template.list, message(template.text, answer[3], body, ARGV[2] .. '-' .. i))
    answer[3] = false
  end
  answers[i] = answer
  local what = request.kind .. '|' .. string.lower(answer[1])
  asked[what] = (asked[what] or 0) + 1
  at = at + 2
end
for what, times in pairs(asked) do total('asked', what, times) end
return { integer(now), answers }
