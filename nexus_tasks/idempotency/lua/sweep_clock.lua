-- sweep_clock: corrects the times in Redis after the server's clock was set back.
-- KEYS: none.
-- ARGV: 1 the key prefix
--       2 lease (ms)
--       3 the key of the sweep's lock
--       4 the longest life of that lock (ms)
--       5 how many entries of each index to correct at the most
--       6 and on: the keys of the sweep's other locks
-- A failover can set the clock back, because the replica's clock may be behind. Times that were written before the
-- failover then lie in the future, and claims would wait too long. So each sweep writes down the time, and the next
-- sweep compares the clock with it. When the clock has gone back, the script corrects three sorts of times. A lease
-- ends at most one lease from now. A message counts as published now at the latest. A waiting claim is due earlier, by
-- as much as the clock went back. Claims that began to wait after the failover are then due too early, which does no
-- harm.
-- When the clock went back by more than a day, another program may have written the noted time. Then only those waiting
-- claims are corrected that were asked for, or last begun, at a time in the future.
-- A lock without an end is the work of another program. Nothing would sweep again, so it gets an end.
-- Returns {now (ms), by how many ms the clock went back (0 when it did not), the locks that got an end}.

local LOCKED_AT_MOST = 120000 -- ms; no lock of these lasts longer than 60 s
local DAY = 86400000 -- ms
local ended = {}
for _, lock in ipairs({ ARGV[3], unpack(ARGV, 6) }) do
  local left = redis.call('PTTL', lock)
  if left == -1 or left > LOCKED_AT_MOST then
    redis.call('PEXPIRE', lock, ARGV[4])
    table.insert(ended, lock)
  end
end

local noted, most = number(redis.call('GET', prefix .. ':clock')), number(ARGV[5])
local back = noted - now
if math.abs(back) > 1000 then redis.call('SET', prefix .. ':clock', integer(now)) end
if back <= 1000 then return { integer(now), 0, ended } end

local function later(index, than)
  return redis.call('ZRANGE', index, '(' .. integer(than), '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
end

local function cap(index, at, name)
  local found = later(index, at)
  for i = 1, #found, 2 do
    redis.call('ZADD', index, integer(at), found[i])
    if name then redis.call('HSET', found[i], name, integer(at)) end
  end
end

local lease_end = now + number(ARGV[2])
cap(prefix .. ':leases', lease_end, 'lease_until')
cap(prefix .. ':lines', now)
for _, queue in ipairs(redis.call('SMEMBERS', prefix .. ':queues')) do
  cap(prefix .. ':published:' .. queue, now)
  cap(prefix .. ':settle:' .. queue, now)
  local delivered = prefix .. ':delivered:' .. queue
  if number(redis.call('GET', delivered)) > now then redis.call('DEL', delivered) end
end

local function is_of_the_future(key)
  local times = redis.call('HMGET', key, 'enqueued_at', 'started_at')
  return math.max(number(times[1]), number(times[2])) > now
end

local due = later(prefix .. ':due', now)
for i = 1, #due, 2 do
  if back <= DAY or is_of_the_future(due[i]) then
    local at = integer(math.max(number(due[i + 1]) - back, now))
    redis.call('ZADD', prefix .. ':due', at, due[i])
    redis.call('HSET', due[i], 'due_at', at)
  end
end
if redis.call('PTTL', ARGV[3]) > number(ARGV[4]) then redis.call('PEXPIRE', ARGV[3], ARGV[4]) end
return { integer(now), integer(back), ended }
