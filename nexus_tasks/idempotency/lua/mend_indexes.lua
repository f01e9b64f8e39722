-- mend_indexes: puts claims back into the indexes of their state.
-- KEYS: claims. ARGV: 1 the key prefix.
-- An index can lose an entry by an eviction or by hand. Without the entry the sweep never finds the claim.
-- Returns {how many entries were put back, the namespaces, the wait reasons and the kinds of these claims}.

local put_back, namespaces, reasons, kinds = 0, {}, {}, {}

local function put(index, score, key)
  if score and not redis.call('ZSCORE', index, key) then
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
  local f = redis.call('HMGET', key, 'state', 'namespace', 'queue', 'due_at', 'lease_until', 'published_at', 'wait_reason',
    'enqueued_at', 'kind')
  local state = f[1]
  if state then
    namespaces[f[2]], kinds[f[9]] = true, true
    for id in pairs(ids_of(key)) do
      if redis.call('HEXISTS', ids_key(f[9], id), id) == 0 then
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
      if f[7] == 'concurrency' and not f[4] and not redis.call('ZSCORE', line_key(f[2], f[3]), key) then
        to_line(key)
        put_back = put_back + 1
      end
    end
    if state == 'running' then put(prefix .. ':leases', f[5], key) end
    if state == 'pending' then
      put(prefix .. ':published:' .. f[3], f[6], key)
      if number(field(key, 'republished')) < SUSPECT then put(ahead_key(f[2], f[3]), f[6], key) end
    end
  end
end
return { put_back, names(namespaces), names(reasons), names(kinds) }
