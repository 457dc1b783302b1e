-- Writes what a node tells of itself, and the store's marker if there is none.
-- KEYS: node, facts, index of nodes, marker. ARGV: node id, address, facts, time to live in ms.
-- The index is ordered by when each node expires; those that did long ago leave it.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ttl_ms = tonumber(ARGV[4])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl_ms)
redis.call('SET', KEYS[2], ARGV[3], 'PX', ttl_ms)
redis.call('ZADD', KEYS[3], now_ms + ttl_ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now_ms - ttl_ms)
-- A marker of the future is from before the clock was set back.
local marker_ms = tonumber(redis.call('GET', KEYS[4]) or '')
if not marker_ms or marker_ms > now_ms then
  redis.call('SET', KEYS[4], string.format('%d', now_ms))
end
return 1
