-- astray: finds claims that neither the sweep nor the end of a run would ever find, because an index lacks them.
-- KEYS: claims. ARGV: 1 the key prefix.
-- Returns the positions (from 1) of such KEYS. Claims that do not exist are not among them.

local known = {} -- answers about sets that this script has asked for: many claims ask for the same

local function ask(command, key, member)
  local question = key .. ' ' .. member
  if known[question] == nil then
    local answer = redis.call(command, key, member)
    known[question] = answer and answer ~= 0
  end
  return known[question]
end

-- Returns whether what lets the claim go on has it in its index.
local function is_found(key, state, namespace, queue, reason, due_at, kind)
  if state == 'running' then return redis.call('ZSCORE', prefix .. ':leases', key) end
  if state == 'pending' then
    return redis.call('ZSCORE', prefix .. ':published:' .. queue, key) and ask('SISMEMBER', prefix .. ':queues', queue)
  end
  if due_at then return redis.call('ZSCORE', prefix .. ':due', key) end
  if reason == 'concurrency' then
    return redis.call('ZSCORE', line_key(namespace, queue), key)
      and ask('ZSCORE', prefix .. ':lines', namespace)
      and ask('SISMEMBER', prefix .. ':lines:' .. namespace, queue)
  end
  if not redis.call('ZSCORE', waits_key(key, reason), key) then return false end
  if reason == 'pause' then return ask('SISMEMBER', prefix .. ':pauses', kind) end
  return ask('SISMEMBER', prefix .. ':versions', kind .. '|' .. (field(key, 'strange_to') or ''))
end

local positions = {}
for i, key in ipairs(KEYS) do
  local f = redis.call('HMGET', key, 'state', 'namespace', 'queue', 'wait_reason', 'due_at', 'kind')
  local sound = f[1] and f[2] and f[3] and f[6] and (f[1] ~= 'waiting' or f[4])
  if sound then
    if not is_found(key, unpack(f)) then table.insert(positions, i) end
  elseif redis.call('EXISTS', key) == 1 then
    table.insert(positions, i) -- the claim is damaged
  end
end
return positions
