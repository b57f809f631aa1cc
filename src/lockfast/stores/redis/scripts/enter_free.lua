-- enter_free.lua  (before shard.lua)  →  the token of a lock not in use: a fast path of enter.lua
--
-- Most claims take this path. It writes exactly the bytes that the general path would write. In every other case it
-- writes nothing, and the general path that follows runs. shard.lua explains the order of writes.

local keys, arguments, call = KEYS, ARGV, redis.call
local rows, session_key, resource_key = keys[1], arguments[1], arguments[3]
local counters, session, resource
if resource_key ~= '' then
  local found = call('HMGET', rows, 'm', session_key, resource_key)
  counters, session, resource = found[1], found[2], found[3]
  if session and #session < $MARK_AT then
    session = nil
  end
  -- Counters of this length mean that no session watches the log.
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
      -- Reply with the token alone: a table would take ten times as long.
      return keys[5] and { token, {} } or token
    end
  end
end
