-- mend_counts: counts the claims in the indexes, and corrects the counters of namespaces.
-- KEYS: none.
-- ARGV: 1 the key prefix
--       2 the namespaces (a JSON list)
--       3 '1' to correct all counters; otherwise only `running` and `slots` are corrected, also those of other
--         namespaces that have running claims
--       4 with '1': the reasons for which claims wait, also claims of an earlier release (a JSON list)
--       5 with '1': the kinds of the claims (a JSON list)
-- A running claim that is deleted by hand leaves its counters too high. Without this script its namespace would have
-- one slot less for good.
-- The script reads the claim of every lease (one per running job of all workers). With '1' it also reads every pending
-- claim, and every claim that waits for the end of a pause or for a worker of another release.
-- Returns {namespace, counter, old value, new value} for each counter that was wrong.

local truth, mended, all = {}, {}, ARGV[3] == '1'
for _, namespace in ipairs(cjson.decode(ARGV[2])) do truth[namespace] = { running = 0, slots = 0 } end

local function add(namespace, what, number_of)
  if not truth[namespace] and not all then truth[namespace] = { running = 0, slots = 0 } end
  local counts = truth[namespace]
  if counts then counts[what] = (counts[what] or 0) + number_of end
end

-- Counts the claims of an index that are in a state. Removes the keys of other claims from the index.
local function count_each(index, state)
  for _, key in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    local f = redis.call('HMGET', key, 'state', 'namespace', 'slot')
    if f[1] == state then
      add(f[2], state, 1)
      if f[3] then add(f[2], 'slots', 1) end
    else
      redis.call('ZREM', index, key)
    end
  end
end

count_each(prefix .. ':leases', 'running')
if all then
  for _, counts in pairs(truth) do counts.pending, counts.waiting = 0, 0 end
  for _, queue in ipairs(redis.call('SMEMBERS', prefix .. ':queues')) do
    count_each(prefix .. ':published:' .. queue, 'pending')
  end
  for _, kind in ipairs(cjson.decode(ARGV[5])) do count_each(prefix .. ':waits:pause:' .. kind, 'waiting') end
  local reasons = { concurrency = true } -- `to_line` does not write this reason into the set
  for _, reason in ipairs(redis.call('SMEMBERS', prefix .. ':reasons')) do reasons[reason] = true end
  for _, reason in ipairs(cjson.decode(ARGV[4])) do reasons[reason] = true end
  reasons.pause, reasons.version = nil, nil -- the indexes of these reasons are kept by kind, not by namespace
  for _, whose in ipairs(redis.call('SMEMBERS', prefix .. ':versions')) do
    count_each(prefix .. ':waits:version:' .. whose, 'waiting')
  end
  for reason in pairs(reasons) do
    for namespace in pairs(truth) do
      add(namespace, 'waiting', redis.call('ZCARD', prefix .. ':waits:' .. reason .. ':' .. namespace))
    end
  end
end
local COUNTERS = { pending = true, waiting = true, running = true, slots = true }
for namespace, counts in pairs(truth) do
  local written = prefix .. ':count:' .. namespace
  local row = redis.call('HGETALL', written)
  for i = 1, #row, 2 do
    if not COUNTERS[row[i]] or not string.find(row[i + 1], '^%d+$') or #row[i + 1] > 15 then
      take_out(written, row[i], row[i + 1]) -- the counter is made again below, or by the repair that the sweep begins
    end
  end
  for what, is in pairs(counts) do
    local was = number(redis.call('HGET', written, what))
    if was ~= is then
      if is > 0 then redis.call('HSET', written, what, is) else redis.call('HDEL', written, what) end
      table.insert(mended, { namespace, what, was, is })
    end
  end
end
return mended
