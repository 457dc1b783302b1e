-- Appends the events of one room to its tenant's stream, in order, and stops at the first failure.
-- KEYS[1]: the stream. ARGV[1]: its approximate maximal length, 0 for none.
-- Then for each event: id, room_id, seq, index, type, envelope.
-- Answers how many were appended and, when it stopped, why.
local trim = tonumber(ARGV[1])
local appended = 0
for at = 2, #ARGV, 6 do
  local command = { 'XADD', KEYS[1] }
  if trim > 0 then
    command[3], command[4], command[5] = 'MAXLEN', '~', ARGV[1]
  end
  command[#command + 1] = '*'
  for i, field in ipairs({ 'id', 'room_id', 'seq', 'index', 'type', 'event' }) do
    command[#command + 1] = field
    command[#command + 1] = ARGV[at + i - 1]
  end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    return { appended, answer.err }
  end
  appended = appended + 1
end
return { appended, false }
