-- enter_free.lua  (before shard.lua)  →  the token of a lock that nobody uses: the shortcut of enter.lua
--
-- Nine in ten claims are like this, and pay for nothing else. What it leaves behind is to the byte
-- what the long way would; where anything is out of the ordinary it leaves everything to that.

if ARGV[3] ~= '' then
  local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
  local id, n, name = ARGV[1], ARGV[2], ARGV[4]
  local session_key, resource_key = 's\031' .. id, 'r\031lock\031' .. name
  local found = call('HMGET', KEYS[1], 'm', session_key, resource_key)
  local session = found[2]
  if found[1] and session and not found[3] then
    local schema, shards, token, position, due_ms, _, log_until_ms = unpack_from('<BBddddd', found[1])
    local deadline_ms, highest, claims, checksum, flags = unpack_from('<ddddB', session)
    local now_ms, wall_us
    if KEYS[5] then
      now_ms, wall_us = string.match(KEYS[5], '(%d+) (%d+)')
      now_ms, wall_us = now_ms + 0, wall_us + 0
    else
      local time = call('TIME')
      wall_us = time[1] * 1000000 + time[2]
      now_ms = (wall_us - wall_us % 1000) / 1000
    end
    token = token + 1
    if token < wall_us then
      token = wall_us
    end
    -- Below 2^52, % is exact; a list of claims that is full goes on elsewhere.
    if schema == 1 and shards == 1 and log_until_ms == 0 and flags == 0 and now_ms < due_ms and now_ms < deadline_ms
      and highest + 1 == n + 0 and token < 4e15 and highest < 1e9 and #session < 433 and claims < 100000 then
      local x = (n * 40503 + token) % 67108859
      local mode = ARGV[3]
      if string.byte(mode) == 63 then
        mode = string.sub(mode, 2)
      end
      position = position + 1
      -- First what may be refused for want of memory: nothing is changed then.
      call('HSET', KEYS[1],
        'm', pack('<BBddddd', 1, 1, token, position, due_ms, 0, 0),
        session_key, pack('<ddddB', deadline_ms, n, claims + 1, (checksum + x * x) % 4294967296, 0)
          .. string.sub(session, 34) .. n .. ',',
        'c\031' .. id .. '\031' .. n, '!' .. name,
        resource_key, '!' .. pack('<dddd', token, now_ms, now_ms, position) .. mode .. '\031' .. id .. '\031' .. n
          .. '\031' .. ARGV[5])
      call('ZADD', KEYS[2], 0, resource_key)
      -- The token alone: a number costs a tenth of what a table costs on its way out.
      return KEYS[5] and { token, {} } or token
    end
  end
end
