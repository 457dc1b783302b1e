-- Takes back what a node told of itself, if it is of the given incarnation.
-- KEYS: node, facts, index of nodes. ARGV: node id, incarnation. Answers 1 if it did.
local facts = redis.call('GET', KEYS[2])
if not facts then
  return 0
end
local readable, told = pcall(cjson.decode, facts)
if readable and type(told) == 'table' and told['incarnation'] ~= ARGV[2] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
