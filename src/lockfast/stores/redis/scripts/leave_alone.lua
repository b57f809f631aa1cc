-- leave_alone.lua  (before shard.lua)  →  1 for the only holder of a lock nobody waits for: the shortcut of leave.lua
--
-- As enter_free.lua: what it leaves behind is to the byte what the long way would.

if ARGV[3] ~= '' then
  local call, pack, unpack_from, find = redis.call, struct.pack, struct.unpack, string.find
  local id, n = ARGV[1], ARGV[2]
  local session_key, resource_key = 's\031' .. id, 'r\031lock\031' .. ARGV[3]
  local found = call('HMGET', KEYS[1], 'm', session_key, resource_key)
  local session, resource = found[2], found[3]
  -- A plain lock, and ours: the mode, of at most nine letters, is before the reference.
  local ours = session and resource and string.byte(resource) == 33
    and find(resource, '\031' .. id .. '\031' .. n .. '\031', 34, true)
  if ours and ours < 44 and found[1] then
    local schema, shards, token, position, due_ms, _, log_until_ms = unpack_from('<BBddddd', found[1])
    local deadline_ms, highest, claims, checksum, flags = unpack_from('<ddddB', session)
    local first, last = find(session, ',' .. n .. ',', 34, true)
    local granted = unpack_from('<d', resource, 2)
    local now_ms
    if KEYS[5] then
      now_ms = string.match(KEYS[5], '%d+') + 0
    else
      local time = call('TIME')
      now_ms = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
    end
    if schema == 1 and shards == 1 and log_until_ms == 0 and flags == 0 and now_ms < due_ms and now_ms < deadline_ms
      and first and granted < 4e15 and highest < 1e9 then
      local x = (n * 40503 + granted) % 67108859
      call('HDEL', KEYS[1], 'c\031' .. id .. '\031' .. n, resource_key)
      call('HSET', KEYS[1],
        'm', pack('<BBddddd', 1, 1, token, position + 1, due_ms, 0, 0),
        session_key, pack('<ddddB', deadline_ms, highest, claims - 1, (checksum - x * x) % 4294967296, 0)
          .. string.sub(session, 34, first) .. string.sub(session, last + 1))
      call('ZREM', KEYS[2], resource_key)
      return KEYS[5] and { 1, {} } or 1
    end
  end
end
