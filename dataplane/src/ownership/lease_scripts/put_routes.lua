-- Writes or renews routes.
-- KEYS: routes. ARGV: time to live in ms, then one value for each key.
-- A value is `epoch:token:node`, the epoch in 20 decimal digits, so that text order is number order.
-- Answers one text for each key: empty when it is written, else the value that stands there.
local ttl_ms = ARGV[1]
local answers = {}
for i, key in ipairs(KEYS) do
  local mine = ARGV[i + 1]
  local standing = redis.call('GET', key)
  -- Epoch and token are the first 53 characters. What is not a route at all does not stand in the way.
  if not standing
    or not string.find(standing, '^%d+:%x+:')
    or string.sub(standing, 1, 20) < string.sub(mine, 1, 20)
    or string.sub(standing, 1, 53) == string.sub(mine, 1, 53)
  then
    redis.call('SET', key, mine, 'PX', ttl_ms)
    answers[i] = ''
  else
    answers[i] = standing
  end
end
return answers
