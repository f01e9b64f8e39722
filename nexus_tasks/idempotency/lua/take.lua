-- take: a run gathers its batch. KEYS[1] the run's own claim, KEYS[2..] the siblings it wants. ARGV: 2 token,
-- 3 lease (ms), 4 whether these were members before the run was cut off ('1': whatever they wait for ends now),
-- 5.. a request per sibling (JSON), for those Redis has lost.
-- A sibling is taken when nobody runs it (or its run has not gathered yet: two runs of one session that start together
-- become one), it has not crashed twice, and it waits for nothing but company or a slot.
-- Returns false when the run is no longer the claim's, else per sibling its fields, or {} where it was left alone.

local lead, token, lease, again = KEYS[1], ARGV[2], number(ARGV[3]), ARGV[4] == '1'
if field(lead, 'token') ~= token then return false end
redis.call('HDEL', lead, 'open')

local function free(key)
  local state = field(key, 'state')
  if not state then return redis.call('EXISTS', done_key(key)) == 0 end
  if number(field(key, 'crashes')) >= 2 then return false end
  if state == 'running' then return field(key, 'open') == '1' end
  local reason = field(key, 'wait_reason')
  return state == 'pending' or again or reason == 'ripeness' or reason == 'concurrency'
end

local taken = {}
for i = 2, #KEYS do
  local key = KEYS[i]
  if free(key) then
    if not field(key, 'state') then
      local request = cjson.decode(ARGV[i + 3])
      create(key, request)
      merge(key, request.force, request.reasons, request.urgency)
    end
    local begun = field(key, 'state') == 'running' -- its flags are those of its run already
    to_running(key, token, lease, false)
    if not begun then flags_to_run(key) end
    taken[i - 1] = redis.call('HGETALL', key)
  else
    taken[i - 1] = {}
  end
end
return taken
