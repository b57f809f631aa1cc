-- writing.lua  (behind rows.lua)  →  the end of a step: write its changes in the order that shard.lua explains, then wake

local LOG_KEPT, LOG_PRUNED_EVERY = $LOG_KEPT, 64
local FIELDS_AT_ONCE = 7000 -- of the one HSET: Lua unpacks 8,000 values at most

local first_position = position
local texts = {} -- metadata to write
local entries = {} -- to append to the log
local drops_log = false
local wakes = {}

local function wake(claim, what, told_token)
  local session = get_session(claim.session)
  if session then
    wakes[#wakes + 1] = { session.inbox, claim.session, claim.n, what, told_token or 0, claim }
  end
end

-- Counts every event, but writes it only while the log is enabled.
local function log(what, place, claim, detail)
  position = position + 1
  if log_until_ms > 0 then
    local session = get_session(claim.session)
    entries[#entries + 1] = pack('<ddd', floor(wall_us / 1000), claim.n, claim.token) .. what .. SEP .. place[1]
      .. SEP .. place[2] .. SEP .. place[3] .. SEP .. claim.session .. SEP .. (session and session.owner or '')
      .. SEP .. (detail or '')
  end
end

local function write_log()
  if drops_log then
    call('LTRIM', LOG, 1, 0)
  end
  for first = 1, #entries, AT_ONCE do
    call('RPUSH', LOG, unpack(entries, first, min(first + AT_ONCE - 1, #entries)))
  end
  if #entries > 0 and floor(position / LOG_PRUNED_EVERY) > floor(first_position / LOG_PRUNED_EVERY) then
    call('LTRIM', LOG, -LOG_KEPT, -1)
  end
end

-- Wakes a session. Any user may publish, so the message carries a code that only readers of its row can compute.
local function tell(inbox, session, n, what, told_token)
  if inbox ~= '' then
    local said = session .. ' ' .. text(n) .. ' ' .. what .. ' ' .. text(told_token)
    call('PUBLISH', sub(ROWS, 1, -5) .. 'wake:' .. session, said .. ' ' .. $WAKE_CODE)
  end
end

local function publish()
  if position > first_position and watchers > 0 then
    for _, member in ipairs(scan('x' .. SEP, 'x ', 1000)) do
      local session = get_session(sub(member, 3))
      if session then
        wakes[#wakes + 1] = { session.inbox, session.id, 0, 'events', 0 }
      end
    end
  end
  for _, told in ipairs(wakes) do
    local inbox, session, n, what, told_token, claim = unpack(told)
    if what == 'granted' and claim.max_hold_ms > 0 then
      what = 'look' -- only the reply says for how long the claim has been held
    end
    tell(inbox, session, n, what, told_token)
  end
end

-- Writes the changes of the step, and deletes the rows of resources that are no longer in use.
local function flush()
  local fields, count, written, deleted = {}, 0, {}, {}
  local function put(key, value)
    fields[count + 1] = key
    fields[count + 2] = value
    count = count + 2
    written[key] = true
  end
  local function put_resource(key, r)
    local claim = plain_holder(r)
    if claim then
      put(key, packed_plain(claim))
      put('c' .. SEP .. claim.ref, key)
      claims_changed[claim.ref] = nil
      return
    end
    put(key, packed_resource(r))
    local before = r.plain and cache['c' .. SEP .. r.plain]
    if before then
      claims_changed[before.ref] = before -- until now its row was only the resource's key
    end
  end
  for key, r in pairs(resources_used) do
    if r.holders > 0 or r.waiting > 0 or r.reservations > 0 or r.closed_ms > now_ms then
      put_resource(key, r)
      if r.fresh then
        in_order(key)
      end
    elseif not r.fresh then
      dropped[#dropped + 1] = key
      out_of_order(key)
    end
  end
  for id, session in pairs(sessions_changed) do
    put('s' .. SEP .. id, packed_session(session))
    local identity = packed_identity(session)
    if identity ~= session.identity then
      put('i' .. SEP .. id, identity)
    end
  end
  for ref, claim in pairs(claims_changed) do
    put('c' .. SEP .. ref, packed_claim(claim))
  end
  for key, value in pairs(texts) do
    put(key, value)
  end
  for _, key in ipairs(dropped) do
    if not written[key] then
      put(key, '')
      deleted[#deleted + 1] = key
    end
  end
  put('m', packed_counters())
  write_added()
  if due_changes > 0 then
    call('ZADD', DUE, 'XX', '0', '') -- changes nothing; the server refuses it here if it would refuse it below
  end
  for first = 1, count, FIELDS_AT_ONCE do
    call('HSET', ROWS, unpack(fields, first, min(first + FIELDS_AT_ONCE - 1, count)))
  end
  write_due() -- before anything is removed: if the server refuses that, granted claims still expire
  for first = 1, #deleted, AT_ONCE do
    call('HDEL', ROWS, unpack(deleted, first, min(first + AT_ONCE - 1, #deleted)))
  end
  write_removed()
  write_log()
  publish()
end

-- Called first by commands that free memory, so that they succeed when the server is out of memory: Redis never
-- refuses a deletion, and refuses nothing more in a script that has already written.
local function write_in_any_case()
  call('HDEL', ROWS, '')
end

-- Builds the reply; with the clock of a test it includes the wakes, for comparison.
local function answer(reply)
  if not KEYS[5] then
    return reply
  end
  local told = {}
  for i, one in ipairs(wakes) do
    told[i] = { one[1], one[2], one[3], one[4], one[5] }
  end
  return { reply, told }
end
