-- leave_next.lua  (behind passing.lua)  →  1 if an exclusive holder hands over to the next: a fast path of leave.lua
--
-- Like enter_free.lua it writes and wakes exactly as the general path would, or does nothing.

-- Rows of resources that are not plain begin with a byte above 127 (msgpack).
if session and resource and (string.byte(resource) or 0) > 127 and counters and #counters == $COUNTERS_BYTES then
  local find, sub = string.find, string.sub
  local held, reserved, holders, waiting, reservations, sole, converting, limit, closed_ms, closed_for_ms, retained =
    cmsgpack.unpack(resource)
  local mine = sub(claim_key, 2)
  if held.exclusive == 1 and holders == 1 and waiting > 0 and reservations + limit + closed_ms + retained == 0
    and converting == '' and sub(sole, -#mine) == mine then
    local line = 'w' .. sub(resource_key, 2)
    local member = call('ZRANGEBYLEX', keys[2], '[' .. line .. '\031', '(' .. line .. ' ', 'LIMIT', '0', '1')[1]
    local place = sub(member or '', #line + 2)
    local rank, next_session, next_number = string.match(place, '^(%d*)\031([^\031]*)\031(%d+)$')
    local next_key, next_session_key, found
    if rank and #rank == 32 then
      next_key = 'c\031' .. next_session .. '\031' .. next_number
      next_session_key = 's\031' .. next_session
      found = call('HMGET', rows, claim_key, next_key, next_session_key, 'i\031' .. next_session)
    end
    -- The general path handles rows that are missing or do not match the queue.
    if found and string.byte(found[1] or '') == $HOLDING and string.byte(found[2] or '') == $WAITING
      and #(found[3] or '') > 0 and found[4] then
      local _, places, n, granted, _, _, until_ms = unpack_from('<BHddddd', found[1])
      local _, next_places, next_n, _, entered_ms, _, _, max_hold_ms, lock_delay_ms, block, priority,
        step, window_ms, _, actor, _, _, _, value, at = unpack_from('<BHdddddddddddI4c0I4c0I4c0I4c0I4c0I4c0', found[2])
      local _, name, mode = unpack_from('<I4c0I4c0I4c0', found[2], at)
      local token, position, due_ms, schema_shards = unpack_from('<dddH', counters)
      local deadline_ms, highest, claims, checksum, mark = unpack_from('<ddddB', session)
      local next_deadline_ms, next_highest, next_claims, next_checksum, next_mark = unpack_from('<ddddB', found[3])
      local _, _, _, inbox = unpack_from('<ddI4c0I4c0', found[4])
      local first, last = find(session, ',' .. arguments[2] .. ',', $MARK_AT, true)
      local now_ms, wall_us = clock()
      $NEXT_TOKEN
      if schema_shards == $SCHEMA_SHARDS and now_ms < due_ms and now_ms < deadline_ms and mark == $COMMA and next_mark == $COMMA
        and first and token < $EXACT_MAX and n < 1e9 and next_n < 1e9
        and places == 1 and until_ms == 0
        and next_places == 1 and mode == 'exclusive' and value == '' and block == 1
        and priority == 0 and max_hold_ms + lock_delay_ms + step + window_ms == 0
        and sub(rank, 1, 16) == string.format('%016.0f', entered_ms + 1e15) then
        local x = (n * $MIX_FACTOR + granted) % $MIX_PRIME
        local y, z = (next_n * $MIX_FACTOR + token) % $MIX_PRIME, next_n * $MIX_FACTOR % $MIX_PRIME
        position = position + 2
        checksum = (checksum - x * x) % $CHECKSUMS
        if next_session_key == session_key then
          checksum = (checksum + y * y - z * z) % $CHECKSUMS
        end
        local session_row = pack('<ddddc0c0', deadline_ms, highest, claims - 1, checksum,
          sub(session, $MARK_AT, first), sub(session, last + 1))
        local next_session_row = session_row
        if next_session_key ~= session_key then
          next_session_row = pack('<ddddc0', next_deadline_ms, next_highest, next_claims,
            (next_checksum + y * y - z * z) % $CHECKSUMS, sub(found[3], $MARK_AT))
        end
        local next_row, resource_row
        if waiting > 1 then
          next_row = claim_row(2, next_n, token, entered_ms, now_ms, rank, actor, name, mode)
          resource_row = cmsgpack.pack(held, reserved, 1, waiting - 1, 0, place, '', 0, 0, closed_for_ms, 0)
        else
          next_row = resource_key
          resource_row = pack('<c0dddd', next_key .. '\031exclusive\031' .. actor, token, entered_ms, now_ms,
            sub(rank, 17) + 0)
        end
        call('HDEL', rows, '') -- so that HSET is not refused when the server is out of memory
        call('HSET', rows,
          'm', pack('<dddH', token, position, due_ms, $SCHEMA_SHARDS),
          session_key, session_row,
          next_session_key, next_session_row,
          next_key, next_row,
          resource_key, resource_row,
          claim_key, '')
        call('HDEL', rows, claim_key)
        call('ZREM', keys[2], member)
        if inbox ~= '' then
          local said = next_session .. ' ' .. next_number .. ' granted ' .. string.format('%.0f', token)
          call('PUBLISH', sub(rows, 1, -5) .. 'wake:' .. next_session, said .. ' ' .. $WAKE_CODE)
        end
        return keys[5] and { 1, { { inbox, next_session, next_n, 'granted', token } } } or 1
      end
    end
  end
end
