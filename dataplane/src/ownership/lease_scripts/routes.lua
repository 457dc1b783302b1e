-- Looks at routes, and at how long the store has been able to keep them.
-- KEYS: the marker, then routes.
-- Answers: the store's time in ms, when the marker was made (0 if it is missing), seconds since the server
-- started (-1 if no route is absent, since then nobody needs to know), then one text for each route, empty if
-- absent.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answers = { now_ms, tonumber(redis.call('GET', KEYS[1]) or 0) or 0, -1 }
local absent = false
for i = 2, #KEYS do
  local route = redis.call('GET', KEYS[i])
  absent = absent or not route
  answers[i + 2] = route or ''
end
if absent then
  local uptime = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  answers[3] = tonumber(uptime or 0)
end
return answers
