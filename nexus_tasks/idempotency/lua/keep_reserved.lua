-- keep_reserved: notes that messages are not lost. A worker has received them and has not begun them yet, because of a
-- rate limit or a busy pool.
-- KEYS: the claim of each message. ARGV: 1 the key prefix, 2.. the messages' ids, in the same order.
-- The script sets published_at of these claims, and of canvas deliveries in the settle list (see common.lua), to now.
-- Otherwise the sweep would send their messages again. Returns nothing.

local function later(index, member, record)
  local score = redis.call('ZSCORE', index, member)
  if not score then return end
  local grown = score - number(redis.call('HGET', record, 'published_at'))
  redis.call('HSET', record, 'published_at', integer(now))
  redis.call('ZADD', index, integer(now + grown), member)
end

for i, key in ipairs(KEYS) do
  local id = ARGV[i + 1]
  if field(key, 'state') == 'pending' then later(prefix .. ':published:' .. field(key, 'queue'), key, key) end
  local queue = redis.call('HGET', delivery_key(id), 'queue')
  if queue then later(prefix .. ':settle:' .. queue, id, delivery_key(id)) end
end
