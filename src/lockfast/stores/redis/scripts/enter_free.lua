-- enter_free.lua  (before shard.lua)  →  the token of a lock that nobody uses: the shortcut of enter.lua
--
-- Nine claims in ten are like this. It writes to the byte what the general path would; where anything is out of the
-- ordinary it writes nothing and the general path behind it takes over. The order of writes: see shard.lua.

local keys, arguments, call = KEYS, ARGV, redis.call
local rows, session_key, resource_key = keys[1], arguments[1], arguments[3]
local counters, session, resource
if resource_key ~= '' then
  local found = call('HMGET', rows, 'm', session_key, resource_key)
  counters, session, resource = found[1], found[2], found[3]
  if session and #session < $MARK_AT then
    session = nil
  end
  -- With counters of this length nobody watches.
  if session and not resource and counters and #counters == $COUNTERS_BYTES then
    local struct, number = struct, arguments[2]
    local pack, unpack_from, n = struct.pack, struct.unpack, number + 0
    local token, position, due_ms, schema_shards = unpack_from('<dddH', counters)
    local deadline_ms, highest, claims, checksum, mark = unpack_from('<ddddB', session)
    local now_ms, wall_us
    $READ_CLOCK
    $NEXT_TOKEN
    if schema_shards == $SCHEMA_SHARDS and mark == $COMMA and now_ms < due_ms and now_ms < deadline_ms
      and highest + 1 == n and token < $EXACT_MAX and n < 1e9 and #session < $SESSION_BYTES_MAX
      and claims < $CLAIMS_MAX then
      local sub, claim = string.sub, arguments[4]
      if string.byte(claim) == $QUESTION_MARK then
        claim = sub(claim, 2)
      end
      local x = (n * $MIX_FACTOR + token) % $MIX_PRIME
      position = position + 1
      call('ZADD', keys[2], '0', resource_key)
      call('HSET', rows,
        'm', pack('<dddH', token, position, due_ms, $SCHEMA_SHARDS),
        session_key, pack('<ddddc0', deadline_ms, n, claims + 1, (checksum + x * x) % $CHECKSUMS,
          sub(session, $MARK_AT) .. number .. ','),
        sub(claim, 1, #session_key + 1 + #number), resource_key,
        resource_key, pack('<c0dddd', claim, token, now_ms, now_ms, position))
      -- The token alone: to reply with a table costs ten times as much.
      return keys[5] and { token, {} } or token
    end
  end
end
