-- renew: renews the leases of the running claims of one worker process. The process's heartbeat calls this.
-- KEYS: the running claims of the process. ARGV: 1 the key prefix, 2 lease (ms), then for each claim its token and its
-- fields at the start of its run (JSON).
-- A claim that is gone and has no done marker was lost in a flush of Redis during the run. The script makes it again
-- from these fields.
-- Returns the positions in KEYS (from 1) of the claims that the process has lost; an empty list when it has lost none.

local lease, lost = number(ARGV[2]), {}
for i, key in ipairs(KEYS) do
  local token = ARGV[2 * i + 1]
  if field(key, 'token') == token then
    redis.call('HSET', key, 'lease_until', integer(now + lease))
    redis.call('ZADD', prefix .. ':leases', integer(now + lease), key)
  elseif redis.call('EXISTS', key) == 0 and redis.call('EXISTS', done_key(key)) == 0 then
    local was = cjson.decode(ARGV[2 * i + 2])
    for name, value in pairs(was) do redis.call('HSET', key, name, value) end
    for id in pairs(ids_of(key)) do index_id(key, was.kind, id) end
    to_running(key, token, lease, was.slot)
  else
    table.insert(lost, i)
  end
end
return lost
