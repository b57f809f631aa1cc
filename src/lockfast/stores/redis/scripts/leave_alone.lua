-- leave_alone.lua  (before shard.lua)  →  1 for the only holder of a lock without waiters: a fast path of leave.lua
--
-- Like enter_free.lua it writes exactly what the general path would write, or nothing.

local keys, arguments, call = KEYS, ARGV, redis.call
local rows, session_key, resource_key, claim_key = keys[1], arguments[1], arguments[3], arguments[4]
local counters, session, resource
if resource_key ~= '' then
  local found = call('HMGET', rows, 'm', session_key, resource_key)
  counters, session, resource = found[1], found[2], found[3]
  if session and #session < $MARK_AT then
    session = nil
  end
  -- A plain lock, held by this claim.
  if session and resource and string.find(resource, claim_key .. '\031', 1, true) == 1
    and counters and #counters == $COUNTERS_BYTES then
    local struct, n = struct, arguments[2]
    local pack, unpack_from = struct.pack, struct.unpack
    local token, position, due_ms, schema_shards = unpack_from('<dddH', counters)
    local deadline_ms, highest, claims, checksum, mark = unpack_from('<ddddB', session)
    local first, last = string.find(session, ',' .. n .. ',', $MARK_AT, true)
    local granted = unpack_from('<d', resource, #resource - 31)
    -- In the last second before a deadline the general path decides.
    local before_ms
    if keys[5] then
      before_ms = string.match(keys[5], '%d+') + 1
    else
      before_ms = (call('TIME')[1] + 1) * 1000
    end
    if schema_shards == $SCHEMA_SHARDS and mark == $COMMA and before_ms <= due_ms and before_ms <= deadline_ms and first
      and granted < $EXACT_MAX and highest < 1e9 then
      local sub, x = string.sub, (n * $MIX_FACTOR + granted) % $MIX_PRIME
      call('HDEL', rows, '') -- so that HSET is not refused when the server is out of memory
      call('HSET', rows,
        'm', pack('<dddH', token, position + 1, due_ms, $SCHEMA_SHARDS),
        session_key, pack('<ddddc0c0', deadline_ms, highest, claims - 1, (checksum - x * x) % $CHECKSUMS,
          sub(session, $MARK_AT, first), sub(session, last + 1)),
        claim_key, '', resource_key, '')
      call('HDEL', rows, claim_key, resource_key)
      call('ZREM', keys[2], resource_key)
      return keys[5] and { 1, {} } or 1
    end
  end
end
