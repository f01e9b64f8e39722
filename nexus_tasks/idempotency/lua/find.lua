-- find: lists the claims of one index, or counts some of them off. Changes nothing.
-- KEYS: 1 a sorted set of claims. ARGV: 1 the key prefix, 2 the rank to begin at, 3 how many members to look at, 4 only
-- this kind ('' for any), 5 only this namespace ('' for any), 6 how many of the claims that fit to leave out, 7 how many
-- to return at the most.
-- Returns {how many members it has looked at, how many claims that fit it has left out, keys of the others}.

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
