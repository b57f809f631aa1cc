-- enter_last.lua  (behind passing.lua)  →  queued or busy, for an exclusive claim on a held lock: a fast path of enter.lua
--
-- Like enter_free.lua it either does exactly what the general path would do, or writes nothing. The reply is q or b, then
-- session, n, owner, process, renewals, held, token and for_ms of the claim directly ahead, and look_ms.

if session and resource and counters and #counters == $COUNTERS_BYTES then
  local sub, match, format = string.sub, string.match, string.format
  local claim, number = arguments[4], arguments[2]
  local queue = string.byte(claim) ~= $QUESTION_MARK
  if not queue then
    claim = sub(claim, 2)
  end
  local claim_key, n = sub(claim, 1, #session_key + 1 + #number), number + 0
  local now_ms = clock()
  local token, position, due_ms, schema_shards = unpack_from('<dddH', counters)
  local deadline_ms, highest, claims, checksum, mark = unpack_from('<ddddB', session)
  if schema_shards == $SCHEMA_SHARDS and mark == $COMMA and now_ms < due_ms and now_ms < deadline_ms and highest + 1 == n
    and n < 1e9 and #session < $SESSION_BYTES_MAX and claims < $CLAIMS_MAX
    and sub(claim, #claim_key + 1, #claim_key + 11) == '\031exclusive\031' then
    local name, line = sub(resource_key, 8), 'w' .. sub(resource_key, 2) .. '\031'
    -- The claim directly ahead, and the rows that change: that of the holder and that of the resource.
    local other_session, other_number, other_row, resource_row
    local held, other_token, since_ms = 0, 0, nil
    if resource == '' then
      -- Treat the row as missing.
    elseif string.byte(resource) == $PLAIN_MARK then
      -- A plain lock: its only holder has no row of its own yet.
      local mode, actor, entered_ms, arrival
      held = 1
      other_session, other_number, mode, actor =
        match(sub(resource, 1, -33), '^c\031([^\031]*)\031([^\031]*)\031([^\031]*)\031(.*)$')
      other_token, entered_ms, since_ms, arrival = unpack_from('<dddd', resource, #resource - 31)
      if other_token < $EXACT_MAX and other_number + 0 < 1e9 then
        local rank = format('%016.0f%016.0f', entered_ms + 1e15, arrival)
        other_row = claim_row(2, other_number + 0, other_token, entered_ms, since_ms, rank, actor, name, mode)
        resource_row = cmsgpack.pack({ [mode] = 1 }, {}, 1, 1, 0,
          rank .. '\031' .. other_session .. '\031' .. other_number, '', 0, 0, 0, 0)
      end
    else
      local modes, reserved, holders, waiting, reservations, sole, converting, limit, closed_ms, closed_for_ms, retained =
        cmsgpack.unpack(resource)
      if modes.exclusive == 1 and waiting > 0 and waiting < $WAITING_MAX
        and reservations + limit + closed_ms + retained == 0 then
        -- The last claim in the queue, unless it ranks behind this one.
        local last = call('ZREVRANGEBYLEX', keys[2], '(' .. sub(line, 1, -2) .. ' ', '[' .. line, 'LIMIT', '0', '1')[1]
        local rank
        if last then
          rank, other_session, other_number = match(sub(last, #line + 1), '^(%d*)\031([^\031]*)\031(%d+)$')
        end
        if rank and #rank == 32 and sub(rank, 1, 16) + 0 <= now_ms + 1e15 then
          resource_row = cmsgpack.pack(modes, reserved, holders, waiting + 1, 0, sole, converting, 0, 0, closed_for_ms, 0)
        end
      end
    end
    local other_key, found
    if resource_row then
      other_key = 'c\031' .. other_session .. '\031' .. other_number
      found = call('HMGET', rows, 's\031' .. other_session, 'i\031' .. other_session, other_key)
    end
    -- The general path handles rows that are missing or do not match the queue.
    if found and #(found[1] or '') > 0 and found[2] and (held == 1 or string.byte(found[3] or '') == $WAITING) then
      local until_ms = unpack_from('<d', found[1])
      local _, renewals, owner, _, process = unpack_from('<ddI4c0I4c0I4c0', found[2])
      if held == 0 then
        _, _, _, _, since_ms = unpack_from('<BHddd', found[3])
      end
      if queue then
        local x, actor = n * $MIX_FACTOR % $MIX_PRIME, sub(claim, #claim_key + 12)
        position = position + 1
        local rank = format('%016.0f%016.0f', now_ms + 1e15, position)
        call('ZADD', keys[2], '0', line .. rank .. '\031' .. sub(claim_key, 3))
        call('HSET', rows,
          'm', pack('<dddH', token, position, due_ms, $SCHEMA_SHARDS),
          session_key, pack('<ddddc0', deadline_ms, n, claims + 1, (checksum + x * x) % $CHECKSUMS,
            sub(session, $MARK_AT) .. number .. ','),
          claim_key, claim_row(1, n, 0, now_ms, 0, rank, actor, name, 'exclusive'),
          resource_key, resource_row,
          other_key, other_row or found[3])
      else
        call('HSET', rows, session_key, pack('<ddddc0', deadline_ms, n, claims, checksum, sub(session, $MARK_AT)))
      end
      local answer = {
        queue and 'q' or 'b', other_session, other_number + 0, owner, process, renewals, held, other_token,
        now_ms - since_ms, math.max(1, until_ms - now_ms),
      }
      return keys[5] and { answer, {} } or answer
    end
  end
end
