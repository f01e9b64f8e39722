-- take: takes siblings (other messages of the same session) into a run, which answers all of them as one batch.
-- KEYS: 1 the run's primary claim, 2.. the claims of the siblings that the run wants.
-- ARGV: 1 the key prefix
--       2 the run's token
--       3 lease (ms)
--       4 '1' when the siblings were in this batch before its run was cut off; then they may wait for any reason. '2'
--         when, moreover, the whole batch has failed, so that the siblings' unknown errors do not matter
--       5 the reason for which siblings wait until a run takes them
--       6.. a request per sibling (JSON); when Redis has lost the sibling's claim, the script makes it from the request
-- A sibling without a claim is taken, unless a done marker says that its job is done. Any other sibling is taken when
-- all these conditions hold:
--   no other run has it, or the other run has not taken siblings itself yet. So two runs of one session that start
--   together become one run;
--   it has fewer than two crashes and unknown errors (crashes, when ARGV 4 is '2');
--   no newer release has written it;
--   it is pending, waits for a free slot, or waits for the reason of ARGV 5.
-- Taken siblings give up their slots and their places in the queue. So the script lets the next claims of the
-- namespace's lines go on (see common.lua).
-- Returns false when the run has lost its primary claim. Otherwise {per sibling its fields, or {} when it was not
-- taken; wake-ups to publish (see common.lua)}.

local lead, token, lease, again, company = KEYS[1], ARGV[2], number(ARGV[3]), ARGV[4] ~= '0', ARGV[5]
if field(lead, 'token') ~= token then return false end
redis.call('HDEL', lead, 'open')

local function free(key, request)
  local state = field(key, 'state')
  if not state then return not done(key) end
  local errors = ARGV[4] == '2' and 0 or number(field(key, 'errors'))
  if number(field(key, 'crashes')) + errors >= 2 then return false end
  if number(field(key, 'version')) > request.version then return false end
  if state == 'running' then return field(key, 'open') == '1' end
  local reason = field(key, 'wait_reason')
  return state == 'pending' or again or reason == company or reason == 'concurrency'
end

local taken, wakeups = {}, {}
for i = 2, #KEYS do
  local key, request = KEYS[i], cjson.decode(ARGV[i + 4])
  if free(key, request) then
    if not field(key, 'state') then create(key, request) end
    local begun = field(key, 'state') == 'running' -- then its own run has made the merged flags its run flags already
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
