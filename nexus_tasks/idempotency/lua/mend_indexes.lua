-- mend_indexes: puts claims back into the indexes of their state.
-- KEYS: claims. ARGV: 1 the key prefix.
-- An index can lose an entry by an eviction or by hand. Without the entry the sweep never finds the claim.
-- A claim that lacks what its state needs, or has a value that no release writes, is the work of another program. It is
-- renamed to <prefix>:damaged:job:<kind>:<hash>. Reconcile asks for its job again.
-- Returns {how many entries were put back, the namespaces, the wait reasons and the kinds of these claims, the claims
-- that were set aside}.

local put_back, namespaces, reasons, kinds, damaged = 0, {}, {}, {}, {}
local STATES = { waiting = true, pending = true, running = true }
local NUMBERS = { 'errors', 'crashes', 'retries', 'republished', 'failing_since', 'enqueued_at', 'published_at',
  'started_at', 'due_at', 'lease_until', 'version' }
local FARTHEST = 100 * 366 * 86400000 -- ms

local function is_object(text)
  return text and string.sub(text, 1, 1) == '{' and (pcall(cjson.decode, text))
end

local function is_sound(key)
  local f = redis.call('HMGET', key, 'state', 'id', 'kind', 'namespace', 'queue', 'scope', 'args', 'wait_reason',
    'trace', 'worker')
  if not STATES[f[1]] or (f[1] == 'waiting' and not f[8]) then return false end
  for i = 2, 5 do
    if not f[i] or f[i] == '' or string.find(f[i], '%c') then return false end
  end
  local start = prefix .. ':job:' .. f[3] .. ':'
  if string.sub(key, 1, #start) ~= start or #key ~= #start + 64 then return false end
  if not is_object(f[6]) or not is_object(f[7]) then return false end
  for i = 9, 10 do
    if f[i] and f[i] ~= '' and not is_object(f[i]) then return false end
  end
  for i, value in ipairs(redis.call('HMGET', key, unpack(NUMBERS))) do
    if value and not (string.find(value, '^%d+$') and number(value) <= now + FARTHEST) then return false end
  end
  return true
end

local function put(index, score, key)
  -- `published` has a longer grace added to its time.
  local there = redis.call('ZSCORE', index, key)
  local wrong = there and math.abs(tonumber(there) - number(score)) > 3600000
  if score and (not there or wrong) then
    redis.call('ZADD', index, score, key)
    put_back = put_back + 1
  end
end

local function names(set)
  local found = {}
  for name in pairs(set) do table.insert(found, name) end
  return found
end

for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 and not is_sound(key) then
    local aside = prefix .. ':damaged:' .. string.sub(key, #prefix + 2)
    redis.call('RENAME', key, aside)
    redis.call('EXPIRE', aside, DAMAGED_SECONDS)
    table.insert(damaged, key)
  end
  local f = redis.call('HMGET', key, 'state', 'namespace', 'queue', 'due_at', 'lease_until', 'published_at', 'wait_reason',
    'enqueued_at', 'kind')
  local state = f[1]
  if state then
    namespaces[f[2]], kinds[f[9]] = true, true
    for id in pairs(ids_of(key)) do
      if redis.call('HGET', ids_key(f[9], id), id) ~= string.sub(key, -64) then
        index_id(key, f[9], id)
        put_back = put_back + 1
      end
    end
    if state == 'waiting' then
      reasons[f[7]] = true
      redis.call('SADD', prefix .. ':reasons', f[7])
      put(prefix .. ':due', f[4], key)
      put(waits_key(key, f[7]), f[8], key)
      if f[7] == 'version' then
        redis.call('SADD', prefix .. ':versions', f[9] .. '|' .. (field(key, 'strange_to') or ''))
      end
      -- The sweep resumes a kind of this set that has no pause.
      if f[7] == 'pause' then redis.call('SADD', prefix .. ':pauses', f[9]) end
      if f[7] == 'concurrency' and not f[4] then
        if not redis.call('ZSCORE', line_key(f[2], f[3]), key) then
          to_line(key)
          put_back = put_back + 1
        end
        redis.call('ZADD', prefix .. ':lines', 'NX', integer(now), f[2])
        redis.call('SADD', prefix .. ':lines:' .. f[2], f[3])
      end
    end
    if state == 'running' then put(prefix .. ':leases', f[5], key) end
    if state == 'pending' then
      put(prefix .. ':published:' .. f[3], f[6], key)
      redis.call('SADD', prefix .. ':queues', f[3])
      if number(field(key, 'republished')) < SUSPECT then put(ahead_key(f[2], f[3]), f[6], key) end
    end
  end
end
return { put_back, names(namespaces), names(reasons), names(kinds), damaged }
