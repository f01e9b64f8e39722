-- mend_index: removes keys from an index whose claims are gone or do not belong to the index.
-- KEYS: 1 the index. ARGV: 1 the key prefix, 2 the rank to begin at, 3 how many keys at the most, 4 a field of claims,
-- 5 the value of this field in every claim that belongs to the index.
-- Returns {how many keys the script has looked at, how many it has removed}.

-- A member that is no claim may be a key of another type.
local function value(key)
  if string.sub(key, 1, #prefix + 5) ~= prefix .. ':job:' then return nil end
  return field(key, ARGV[4])
end

local taken_out = 0
local keys = redis.call('ZRANGE', KEYS[1], ARGV[2], ARGV[2] + ARGV[3] - 1)
for _, key in ipairs(keys) do
  if value(key) ~= ARGV[5] then
    redis.call('ZREM', KEYS[1], key)
    taken_out = taken_out + 1
  end
end
return { #keys, taken_out }
