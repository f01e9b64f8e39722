-- sweep_due: lets waiting claims go on whose time (due_at) has come.
-- KEYS: none. ARGV: 1 the key prefix, 2 how many claims at the most.
-- A due claim becomes pending, or gets into its namespace's line (see common.lua).
-- Returns {number of due claims, wake-ups to publish (see common.lua)}.

local due, wakeups = upto(prefix .. ':due', 'waiting', now, ARGV[2]), {}
for _, key in ipairs(due) do
  local wakeup = ready(key)
  if wakeup then table.insert(wakeups, wakeup) end
end
return { #due, wakeups }
