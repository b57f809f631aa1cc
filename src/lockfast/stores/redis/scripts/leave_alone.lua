-- leave_alone.lua  (before shard.lua)  →  1 for the only holder of a lock nobody waits for: the shortcut of leave.lua
--
-- As enter_free.lua: what it leaves behind is to the byte what the long way would.

if ARGV[4] == '0' and ARGV[5] == 'lock' then
  local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
  local id, n_text, name = ARGV[2], ARGV[3], ARGV[6]
  local session_key, resource_key = 's\031' .. id, 'r\031lock\031' .. name
  local claim_key = 'c\031' .. id .. '\031' .. n_text
  local found = call('HMGET', KEYS[1], 'm', session_key, claim_key, resource_key)
  if found[1] and found[2] and found[3] and found[4] and string.sub(found[4], 1, 1) == '!'
    and string.sub(found[4], -#claim_key + 1) == string.sub(claim_key, 2) then
    local now_ms, wall_us
    if ARGV[1] == '' then
      local time = call('TIME')
      now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
      wall_us = time[1] * 1000000 + time[2]
    else
      local at = string.find(ARGV[1], ' ', 1, true)
      now_ms = tonumber(string.sub(ARGV[1], 1, at - 1))
      wall_us = tonumber(string.sub(ARGV[1], at + 1))
    end
    local schema, shards, token, position, due_ms, watchers = unpack_from('<dddddd', found[1])
    local deadline_ms, ttl_ms, renewals, highest, claims, checksum, flags, listed, owner, rest =
      unpack_from('<ddddddBI4c0I4c0', found[2])
    local n, granted, _, _, until_ms, _, _, _, _, _, _, _, places = unpack_from('<dddddddddddBH', found[3])
    local first, last = string.find(listed, ',' .. n_text .. ',', 1, true)
    if schema == 1 and shards == 1 and watchers == 0 and now_ms < due_ms and now_ms < deadline_ms
      and flags == 0 and until_ms == 0 and places == 1 and first and (position + 1) % 64 ~= 0 then
      position = position + 1
      local mode = string.sub(found[4], 2, string.find(found[4], '\031', 2, true) - 1)
      local x = math.fmod(math.fmod(n * 40503, 67108859) + math.fmod(granted, 67108859), 67108859)
      listed = string.sub(listed, 1, first) .. string.sub(listed, last + 1)
      if listed == ',' then
        listed = ''
      end
      call('HDEL', KEYS[1], claim_key, resource_key)
      call('HSET', KEYS[1],
        'm', pack('<dddddd', 1, 1, token, position, due_ms, 0),
        session_key, pack('<ddddddBI4c0', deadline_ms, ttl_ms, renewals, highest, claims - 1,
          (checksum - x * x) % 4294967296, 0, #listed, listed) .. string.sub(found[2], rest - #owner - 4))
      call('RPUSH', KEYS[4], pack('<ddd', math.floor(wall_us / 1000), n, granted) .. 'released\031lock\031' .. name
        .. '\031' .. mode .. '\031' .. id .. '\031' .. owner .. '\031')
      call('ZREM', KEYS[2], resource_key)
      return ARGV[1] == '' and 1 or { 1, {} }
    end
  end
end
