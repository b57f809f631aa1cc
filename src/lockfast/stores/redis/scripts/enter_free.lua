-- enter_free.lua  (before shard.lua)  →  the token of a lock that nobody uses: the shortcut of enter.lua
--
-- Nine in ten claims are like this, and pay for nothing else. What it leaves behind is to the byte
-- what the long way would; where anything is out of the ordinary it leaves everything to that.

if ARGV[6] == '' and ARGV[7] == '' and ARGV[8] == '1' and ARGV[9] == 'lock' and not ARGV[14] then
  local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
  local id, n_text, name, mode = ARGV[2], ARGV[3], ARGV[10], ARGV[11]
  local session_key, resource_key = 's\031' .. id, 'r\031lock\031' .. name
  local found = call('HMGET', KEYS[1], 'm', session_key, resource_key)
  if found[1] and found[2] and not found[3] and (mode == 'exclusive' or mode == 'shared' or mode == 'update') then
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
    local n = tonumber(n_text)
    local schema, shards, token, position, due_ms, watchers = unpack_from('<dddddd', found[1])
    local deadline_ms, ttl_ms, renewals, highest, claims, checksum, flags, listed, owner, rest =
      unpack_from('<ddddddBI4c0I4c0', found[2])
    if schema == 1 and shards == 1 and watchers == 0 and now_ms < due_ms and now_ms < deadline_ms
      and flags == 0 and n == highest + 1 and #listed < 400 and (position + 1) % 64 ~= 0
      and tonumber(ARGV[13]) == 0 then
      token = math.max(token + 1, wall_us)
      position = position + 1
      local x = math.fmod(math.fmod(n * 40503, 67108859) + math.fmod(token, 67108859), 67108859)
      local ref = id .. '\031' .. n_text
      local salt = math.fmod(n * 40503 + token + now_ms, 67108859)
      local a, b, c = salt % 251, math.floor(salt / 251) % 251, math.floor(salt / 63001) % 251
      local rank = string.format('%016.0f%016.0f', now_ms + 1e15, position)
      -- First what may be refused for want of memory: nothing is changed then.
      call('HSET', KEYS[1],
        'm', pack('<dddddd', 1, 1, token, position, due_ms, 0),
        session_key, pack('<ddddddBI4c0', deadline_ms, ttl_ms, renewals, n, claims + 1,
          (checksum + x * x) % 4294967296, 0, #listed + #n_text + (listed == '' and 2 or 1),
          (listed == '' and ',' or listed) .. n_text .. ',') .. string.sub(found[2], rest - #owner - 4),
        'c\031' .. ref, pack('<dddddddddddBHI4c0I4c0I4I4I4I4I4c0I4c0I4c0ddBc24', n, token, now_ms, now_ms, 0, 0, 0,
          1, 0, 0, 0, 2, 1, 32, rank, #ARGV[4], ARGV[4], 0, 0, 0, 0, 4, 'lock', #name, name, #mode, mode,
          tonumber(ARGV[12]), 0, 0, string.char(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b, c, c, c, c, c, c, c, c)),
        resource_key, '!' .. mode .. '\031' .. rank .. '\031' .. ref)
      call('RPUSH', KEYS[4], pack('<ddd', math.floor(wall_us / 1000), n, token) .. 'granted\031lock\031' .. name
        .. '\031' .. mode .. '\031' .. id .. '\031' .. owner .. '\031')
      call('ZADD', KEYS[2], 0, resource_key)
      -- The token alone: a number costs a tenth of what a table costs on its way out.
      return ARGV[1] == '' and token or { token, {} }
    end
  end
end
