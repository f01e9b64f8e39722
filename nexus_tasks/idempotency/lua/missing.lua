-- missing: tells reconcile (the loop that asks again for lost jobs) which claims do not exist.
-- KEYS: claims. ARGV: 1 the key prefix.
-- Returns the positions (from 1) of the KEYS that do not exist.

local missing = {}
for i, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 0 then table.insert(missing, i) end
end
return missing
