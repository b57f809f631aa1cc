-- enter_free.lua  (before shard.lua)  →  the token of a lock that nobody uses: the shortcut of enter.lua
--
-- Nine in ten claims are like this, and pay for nothing else. What it leaves behind is to the byte
-- what the long way would; where anything is out of the ordinary it leaves everything to that.

local keys, arguments, call = KEYS, ARGV, redis.call
local rows, session_key, resource_key = keys[1], arguments[1], arguments[3]
local counters, session, resource
if resource_key ~= '' then
  local found = call('HMGET', rows, 'm', session_key, resource_key)
  counters, session, resource = found[1], found[2], found[3]
  -- With counters of this length nobody watches.
  if session and not resource and counters and #counters == 26 then
    local struct, number = struct, arguments[2]
    local pack, unpack_from, n = struct.pack, struct.unpack, number + 0
    local token, position, due_ms, schema_shards = unpack_from('<dddH', counters)
    local deadline_ms, highest, claims, checksum, mark = unpack_from('<ddddB', session)
    local now_ms, wall_us
    if keys[5] then
      now_ms, wall_us = string.match(keys[5], '(%d+) (%d+)')
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
    if schema_shards == 257 and mark == 44 and now_ms < due_ms and now_ms < deadline_ms and highest + 1 == n
      and token < 4e15 and n < 1e9 and #session < 432 and claims < 100000 then
      local sub, claim = string.sub, arguments[4]
      if string.byte(claim) == 63 then
        claim = sub(claim, 2)
      end
      local x = (n * 40503 + token) % 67108859
      position = position + 1
      -- First what may be refused for want of memory: nothing is changed then.
      call('HSET', rows,
        'm', pack('<dddH', token, position, due_ms, 257),
        session_key, pack('<ddddc0', deadline_ms, n, claims + 1, (checksum + x * x) % 4294967296,
          sub(session, 33) .. number .. ','),
        sub(claim, 1, #session_key + 1 + #number), resource_key,
        resource_key, pack('<c0dddd', claim, token, now_ms, now_ms, position))
      call('ZADD', keys[2], '0', resource_key)
      -- The token alone: a number costs a tenth of what a table costs on its way out.
      return keys[5] and { token, {} } or token
    end
  end
end
