-- mend_sets: removes members of sets that stand for nothing, and times in the future from the list of lines.
-- KEYS: none. ARGV: 1 the key prefix.
-- A pause and a strange version are written into their set again with the next claim that waits for them.
-- Returns how many members were removed or corrected.

local mended = 0

local function keep(set, is_used)
  for _, member in ipairs(redis.call('SMEMBERS', prefix .. ':' .. set)) do
    if not is_used(member) then mended = mended + redis.call('SREM', prefix .. ':' .. set, member) end
  end
end

local function exists(name) return redis.call('EXISTS', prefix .. ':' .. name) == 1 end

keep('versions', function(whose) return exists('waits:version:' .. whose) end)
keep('pauses', function(kind) return exists('paused:' .. kind) or exists('waits:pause:' .. kind) end)
for _, namespace in ipairs(redis.call('ZRANGE', prefix .. ':lines', '(' .. integer(now), '+inf', 'BYSCORE')) do
  redis.call('ZADD', prefix .. ':lines', integer(now), namespace)
  mended = mended + 1
end
return mended
