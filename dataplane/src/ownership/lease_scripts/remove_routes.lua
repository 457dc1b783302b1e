-- Removes routes that are exactly the given claims.
-- KEYS: routes. ARGV: `epoch:token:` for each. Answers how many were removed.
local removed = 0
for i, key in ipairs(KEYS) do
  local standing = redis.call('GET', key)
  if standing and string.sub(standing, 1, #ARGV[i]) == ARGV[i] then
    removed = removed + redis.call('DEL', key)
  end
end
return removed
