-- figures: counts claims for metrics, by state, kind and wait reason, and says how long the most overdue ones wait.
-- ARGV: 1 the key prefix
--       2 how old (ms) figures may be that another process has read
--       3 how many claims of an index, and how many namespaces, are looked at. Of more, as many are drawn at random, and
--         their shares are taken for those of all
--       4 how many of the longest lines are returned
-- Returns a JSON object: claims (state -> kind -> number), waiting (reason -> number), lines (a list of {namespace,
-- claims in its lines}, the longest first), oldest_pending, oldest_due, oldest_lease and swept_at (times in ms, or
-- nothing), and now (ms). The figures are kept for a moment, so that many processes that are asked at once cost Redis as
-- much as one.

local max_age, most, longest = number(ARGV[2]), number(ARGV[3]), number(ARGV[4])
local figures_key = prefix .. ':figures'
local known = max_age > 0 and redis.call('GET', figures_key)
if known then
  local at = number(string.match(known, '^{"now":(%d+)'))
  if at <= now and now - at <= max_age then return known end
end

local claims = { running = {}, pending = {}, waiting = {}, in_line = {} }
local waiting = {}

local function add(to, name, by) to[name] = (to[name] or 0) + by end

local function kind_of(key) return string.sub(key, #prefix + 6, -66) end

-- Returns up to `limit` members of an index, and for how many members each of them stands.
local function drawn(index, limit)
  local number_of = redis.call('ZCARD', index)
  if number_of <= limit then return redis.call('ZRANGE', index, 0, -1), 1 end
  return redis.call('ZRANDMEMBER', index, limit), number_of / limit
end

local function first(index) return redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2] end

local keys, weight = drawn(prefix .. ':leases', most)
for _, key in ipairs(keys) do add(claims.running, kind_of(key), weight) end

local oldest_pending
for _, queue in ipairs(redis.call('SMEMBERS', prefix .. ':queues')) do
  local index = prefix .. ':published:' .. queue
  keys, weight = drawn(index, most)
  for _, key in ipairs(keys) do add(claims.pending, kind_of(key), weight) end
  local at = first(index)
  if at and (not oldest_pending or number(at) < oldest_pending) then oldest_pending = number(at) end
end

keys, weight = drawn(prefix .. ':due', most)
for _, key in ipairs(keys) do
  add(claims.waiting, kind_of(key), weight)
  add(waiting, field(key, 'wait_reason') or 'unknown', weight)
end
-- Claims that wait for an event have no due time: those of paused kinds, and those of another release.
local function add_waiting(reason, whose, kind)
  local number_of = redis.call('ZCARD', prefix .. ':waits:' .. reason .. ':' .. whose)
  if number_of > 0 then
    add(claims.waiting, kind, number_of)
    add(waiting, reason, number_of)
  end
end
for _, kind in ipairs(redis.call('SMEMBERS', prefix .. ':pauses')) do add_waiting('pause', kind, kind) end
for _, whose in ipairs(redis.call('SMEMBERS', prefix .. ':versions')) do
  add_waiting('version', whose, string.match(whose, '^[^|]*'))
end

local lines = {}
local namespaces, share = drawn(prefix .. ':lines', most)
for _, namespace in ipairs(namespaces) do
  local index = prefix .. ':waits:concurrency:' .. namespace
  local number_of = redis.call('ZCARD', index)
  if number_of > 0 then
    table.insert(lines, { namespace, number_of })
    keys, weight = drawn(index, math.max(math.floor(most / #namespaces), 1))
    for _, key in ipairs(keys) do add(claims.in_line, kind_of(key), weight * share) end
    add(waiting, 'concurrency', number_of * share)
  end
end
table.sort(lines, function(a, b) return a[2] > b[2] end)
while #lines > longest do table.remove(lines) end

for _, counts in ipairs({ claims.running, claims.pending, claims.waiting, claims.in_line, waiting }) do
  for name, number_of in pairs(counts) do counts[name] = math.floor(number_of + 0.5) end
end
local found = cjson.encode({
  claims = claims,
  waiting = waiting,
  lines = lines,
  oldest_pending = oldest_pending,
  oldest_due = number(first(prefix .. ':due')),
  oldest_lease = number(first(prefix .. ':leases')),
  swept_at = number(redis.call('GET', prefix .. ':clock')),
})
found = '{"now":' .. integer(now) .. ',' .. string.sub(found, 2)
if max_age > 0 then redis.pcall('SET', figures_key, found, 'PX', max_age) end -- a full Redis refuses it
return found
