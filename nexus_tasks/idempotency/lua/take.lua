-- take: a run gathers its batch.
-- KEYS: 1 the run's primary claim, 2.. the siblings that the run wants. ARGV: 1 the key prefix, 2 token, 3 lease (ms),
-- 4 '1' when the siblings were in this batch before its run was cut off (then they may wait for any reason), 5
-- the wait reason of siblings that wait for a run to take them, 6.. a request per sibling (JSON): the script makes the
-- sibling's claim from it when Redis has lost the claim.
-- A sibling without a claim is taken, unless a done marker says that its job is done. Any other sibling is taken when
-- all of this holds:
--   no other run has it, or that run has not gathered yet (two runs of one session that start together become one);
--   it has fewer than two crashes and unknown errors;
--   no newer release has written it;
--   it is pending, or waits for the reason of ARGV 5 or for a slot.
-- A slot that this frees, and the wake-ups of the siblings, make room for the namespace's lines.
-- Returns false when the primary claim is no longer this run's. Otherwise {per sibling its fields, or {} when it was not
-- taken; wake-ups to publish (see common.lua)}.

local lead, token, lease, again, company = KEYS[1], ARGV[2], number(ARGV[3]), ARGV[4] == '1', ARGV[5]
if field(lead, 'token') ~= token then return false end
redis.call('HDEL', lead, 'open')

local function free(key, request)
  local state = field(key, 'state')
  if not state then return not done(key) end
  if number(field(key, 'crashes')) + number(field(key, 'errors')) >= 2 then return false end
  if number(field(key, 'version')) > request.version then return false end
  if state == 'running' then return field(key, 'open') == '1' end
  local reason = field(key, 'wait_reason')
  return state == 'pending' or again or reason == company or reason == 'concurrency'
end

local taken, wakeups = {}, {}
for i = 2, #KEYS do
  local key, request = KEYS[i], cjson.decode(ARGV[i + 4])
  if free(key, request) then
    if not field(key, 'state') then
      create(key, request)
      merge(key, request.force, request.reasons, request.urgency)
    end
    local begun = field(key, 'state') == 'running' -- then the sibling's own run has its flags already
    to_running(key, token, lease, false)
    redis.call('HSET', key, 'worker', field(lead, 'worker') or '')
    if not begun then flags_to_run(key) end
    taken[i - 1] = redis.call('HGETALL', key)
  else
    taken[i - 1] = {}
  end
end
fill_lines(field(lead, 'namespace'), wakeups)
return { taken, wakeups }
