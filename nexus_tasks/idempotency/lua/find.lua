-- find: lists the claims of one index that fit a kind and a namespace. Changes nothing.
-- KEYS: 1 the index, a sorted set of claims.
-- ARGV: 1 the key prefix
--       2 the rank to begin at
--       3 how many members of the index to look at
--       4 the kind that the claims must have ('' for any)
--       5 the namespace that the claims must have ('' for any)
--       6 how many of the fitting claims to leave out at the beginning
--       7 how many claims to return at the most
-- Returns {how many members the script has looked at, how many fitting claims it has left out, the keys of the others}.

local first, most, kind, namespace = number(ARGV[2]), number(ARGV[3]), ARGV[4], ARGV[5]
local skip, wanted = number(ARGV[6]), number(ARGV[7])
local start = prefix .. ':job:' .. kind .. ':'
local looked, skipped, found = 0, 0, {}
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], first, first + most - 1)) do
  if #found == wanted then break end
  looked = looked + 1
  local fits = kind == '' or string.sub(key, 1, #start) == start
  if fits and namespace ~= '' then fits = field(key, 'namespace') == namespace end
  if fits and skipped < skip then
    skipped = skipped + 1
  elseif fits then
    table.insert(found, key)
  end
end
return { looked, skipped, found }
