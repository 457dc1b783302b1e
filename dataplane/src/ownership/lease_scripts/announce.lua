-- Writes what a node tells of itself, and the store's marker if it is missing.
-- KEYS: node, facts, index of nodes, marker. ARGV: node id, address, facts, time to live in ms.
-- The index is ordered by when each node expires; those that did long ago leave it.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ttl_ms = tonumber(ARGV[4])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl_ms)
redis.call('SET', KEYS[2], ARGV[3], 'PX', ttl_ms)
redis.call('ZADD', KEYS[3], now_ms + ttl_ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now_ms - ttl_ms)
redis.call('SET', KEYS[4], string.format('%d', now_ms), 'NX')
return 1
