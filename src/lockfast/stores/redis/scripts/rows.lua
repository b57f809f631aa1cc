-- rows.lua  (behind order.lua)  →  sessions, claims and resources: read once, changed in place, written at the end

local LISTED_BYTES_MAX = $LISTED_BYTES_MAX -- of claim numbers in a session's own row; longer lists are in the index `order`

-- deadline_ms, highest, claims, checksum; then the claim numbers as ,3,17 where the first comma is w if
-- the session watches the log, e if it has ended
local SESSION = '<dddd'
local MARK_AT, WATCHING_MARK = $MARK_AT, 119
-- ttl_ms, renewals / owner, inbox, process, unseen, ended, by, ending (while an ended session has claims
-- left: the event to log when they are removed)
local IDENTITY = '<ddI4c0I4c0I4c0I4c0I4c0I4c0I4c0'
-- state, number of places, n, token, entered_ms, granted_ms, until_ms, max_hold_ms, lock_delay_ms,
-- block, priority, step, window_ms / rank, actor, wants, reason, by, value with a + before it
local CLAIM = '<BHdddddddddddI4c0I4c0I4c0I4c0I4c0I4c0'
-- A plain lock, the usual case (one holder, no waiters, no options): c␟session␟n␟mode␟actor, then
-- token, entered_ms, granted_ms, arrival. The claim's row is the resource's key.
local PLAIN, PLAIN_BYTES, PLAIN_MARK = '<dddd', 32, $PLAIN_MARK
local LOCK_PREFIX = 'r' .. SEP .. 'lock' .. SEP
-- kind, name, mode, weight, limit, reserved
local PLACE = 'I4c0I4c0I4c0ddB'
local STATES = { 'waiting', 'holding', 'revoked', waiting = $WAITING, holding = $HOLDING, revoked = 3 }

local cache = {} -- key → record, or false
local sessions_changed, claims_changed, resources_used = {}, {}, {}
local dropped = {} -- keys of rows to delete

-- ── sessions ─────────────────────────────────────────────────────────────────────────

local function get_session(id)
  local key = 's' .. SEP .. id
  local found = cache[key]
  if found == nil then
    local rows = call('HMGET', ROWS, key, 'i' .. SEP .. id)
    if rows[1] and rows[1] ~= '' then
      if not rows[2] or #rows[1] < MARK_AT then
        damaged('a part of session ' .. id .. ' is missing')
      end
      local deadline_ms, highest, claims, checksum = unpack_from(SESSION, rows[1])
      local ttl_ms, renewals, owner, inbox, process, unseen, ended, by, ending = unpack_from(IDENTITY, rows[2])
      found = {
        id = id, ttl_ms = ttl_ms, owner = owner, inbox = inbox, process = process,
        deadline_ms = deadline_ms, renewals = renewals, highest = highest, unseen = unseen,
        claims = claims, checksum = checksum, watching = byte(rows[1], MARK_AT) == WATCHING_MARK, ended = ended, by = by,
        ending = ending, listed = ',' .. sub(rows[1], MARK_AT + 1), identity = rows[2],
      }
    else
      found = false
    end
    cache[key] = found
  end
  return found
end

local function put_session(s)
  cache['s' .. SEP .. s.id] = s
  sessions_changed[s.id] = s
end

local function packed_session(s)
  local row = pack(SESSION, s.deadline_ms, s.highest, s.claims, s.checksum)
  if s.ended == '' and not s.watching then
    return row .. s.listed
  end
  return row .. (s.ended ~= '' and 'e' or 'w') .. sub(s.listed, 2)
end

local function packed_identity(s)
  return pack(IDENTITY, s.ttl_ms, s.renewals, #s.owner, s.owner, #s.inbox, s.inbox, #s.process, s.process,
    #s.unseen, s.unseen, #s.ended, s.ended, #s.by, s.by, #s.ending, s.ending)
end

-- ── claims ───────────────────────────────────────────────────────────────────────────

local get_resource

local function unpacked_claim(ref, raw)
  local state, count, n, granted, entered_ms, granted_ms, until_ms, max_hold_ms, lock_delay_ms, block, priority,
    step, window_ms, rank, actor, wants, reason, by, value, at = unpack_from(CLAIM, raw)
  local places = {}
  for i = 1, count do
    local kind, name, mode, weight, limit, reserved
    kind, name, mode, weight, limit, reserved, at = unpack_from('<' .. PLACE, raw, at)
    places[i] = { kind, name, mode, weight, limit, reserved }
  end
  return {
    ref = ref, session = sub(ref, 1, find(ref, SEP, 1, true) - 1), n = n, places = places,
    state = STATES[state], rank = rank, actor = actor, priority = priority,
    entered_ms = entered_ms, token = granted, granted_ms = granted_ms, until_ms = until_ms,
    max_hold_ms = max_hold_ms, lock_delay_ms = lock_delay_ms, block = block, step = step,
    wants = wants, reason = reason, by = by, window_ms = window_ms,
    value = value ~= '' and sub(value, 2) or nil,
  }
end

local function get_claim(ref)
  local key = 'c' .. SEP .. ref
  if cache[key] == nil then
    local raw = call('HGET', ROWS, key)
    if not raw or raw == '' then
      cache[key] = false
    elseif sub(raw, 1, #LOCK_PREFIX) == LOCK_PREFIX then
      get_resource('lock', sub(raw, #LOCK_PREFIX + 1))
      if cache[key] == nil then
        damaged('the row of the lock that claim ' .. ref .. ' holds is missing')
      end
    else
      cache[key] = unpacked_claim(ref, raw)
    end
  end
  return cache[key]
end

local function put_claim(claim)
  cache['c' .. SEP .. claim.ref] = claim
  claims_changed[claim.ref] = claim
end

local function claim_member(claim)
  return 'c' .. SEP .. claim.session .. SEP .. format('%016.0f', claim.n)
end

-- Adds a claim to the list in its session's row, or to the index if that list is full.
local function list_claim(claim)
  local session = get_session(claim.session)
  if #session.listed < LISTED_BYTES_MAX then
    session.listed = session.listed .. text(claim.n) .. ','
    put_session(session)
  else
    in_order(claim_member(claim))
  end
end

local function delete_claim(claim)
  cache['c' .. SEP .. claim.ref] = false
  claims_changed[claim.ref] = nil
  dropped[#dropped + 1] = 'c' .. SEP .. claim.ref
  local session = get_session(claim.session)
  local first, last = find(session.listed, ',' .. text(claim.n) .. ',', 1, true)
  if first then
    session.listed = sub(session.listed, 1, first) .. sub(session.listed, last + 1)
    put_session(session)
  else
    out_of_order(claim_member(claim))
  end
end

-- Lua interns strings by a hash of every k-th byte, where k grows with the length. Records that differ in few
-- bytes would collide, and each new one would be compared with thousands of dead ones: 20 µs instead of 1. So
-- each record ends in a salt whose bytes differ wherever the hash samples.
local function salt(x)
  local a, b, c = x % 251, floor(x / 251) % 251, floor(x / 63001) % 251
  return string.char(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b, c, c, c, c, c, c, c, c)
end

local function packed_claim(c)
  local value = c.value and '+' .. c.value or ''
  local values = {
    STATES[c.state], #c.places, c.n, c.token, c.entered_ms, c.granted_ms, c.until_ms, c.max_hold_ms,
    c.lock_delay_ms, c.block, c.priority, c.step, c.window_ms, #c.rank, c.rank, #c.actor, c.actor,
    #c.wants, c.wants, #c.reason, c.reason, #c.by, c.by, #value, value,
  }
  for _, p in ipairs(c.places) do
    for _, part in ipairs({ #p[1], p[1], #p[2], p[2], #p[3], p[3], p[4], p[5], p[6] }) do
      values[#values + 1] = part
    end
  end
  values[#values + 1] = salt(math.fmod(c.n * $MIX_FACTOR + c.token + c.entered_ms, $MIX_PRIME))
  -- Pack in one call: parts packed separately would be strings without salt.
  return pack(CLAIM .. string.rep(PLACE, #c.places) .. 'c24', unpack(values))
end

-- ── resources ────────────────────────────────────────────────────────────────────────

local function rank_of(key_ms, arrival)
  return format('%016.0f%016.0f', max(0, key_ms + 1e15), arrival)
end

local function plain_resource(name, raw)
  local granted, entered_ms, granted_ms, arrival = unpack_from(PLAIN, raw, #raw - PLAIN_BYTES + 1)
  local session, n, mode, actor =
    string.match(sub(raw, 1, -PLAIN_BYTES - 1), '^c\031([^\031]*)\031([^\031]*)\031([^\031]*)\031(.*)$')
  local ref, rank = session .. SEP .. n, rank_of(entered_ms, arrival)
  cache['c' .. SEP .. ref] = {
    ref = ref, session = session, n = tonumber(n), places = { { 'lock', name, mode, 1, 0, 0 } },
    state = 'holding', rank = rank, actor = actor, priority = 0, entered_ms = entered_ms, token = granted,
    granted_ms = granted_ms, until_ms = 0, max_hold_ms = 0, lock_delay_ms = 0, block = 1, step = 0,
    wants = '', reason = '', by = '', window_ms = 0,
  }
  return {
    kind = 'lock', name = name, held = { [mode] = 1 }, reserved = {}, holders = 1, waiting = 0,
    reservations = 0, sole = rank .. SEP .. ref, converting = '', limit = 0, closed_ms = 0,
    closed_for_ms = 0, retained = 0, plain = ref,
  }
end

function get_resource(kind, name)
  local key = 'r' .. SEP .. kind .. SEP .. name
  local found = cache[key]
  if found == nil then
    local raw = call('HGET', ROWS, key)
    if raw == '' then
      raw = false
    end
    if raw and byte(raw) == PLAIN_MARK then
      found = plain_resource(name, raw)
    elseif raw then
      local held, reserved, holders, waiting, reservations, sole, converting, limit, closed_ms,
        closed_for_ms, retained = cmsgpack.unpack(raw)
      if closed_ms > now_ms + closed_for_ms then
        closed_ms = now_ms + closed_for_ms -- the clock was set back
      end
      found = {
        kind = kind, name = name, held = held, reserved = reserved, holders = holders,
        waiting = waiting, reservations = reservations, sole = sole, converting = converting,
        limit = limit, closed_ms = closed_ms, closed_for_ms = closed_for_ms, retained = retained,
      }
    else
      found = {
        kind = kind, name = name, held = {}, reserved = {}, holders = 0, waiting = 0,
        reservations = 0, sole = '', converting = '', limit = 0, closed_ms = 0, closed_for_ms = 0,
        retained = 0, fresh = true,
      }
    end
    cache[key] = found
    resources_used[key] = found
  end
  return found
end

local function packed_resource(r)
  return cmsgpack.pack(r.held, r.reserved, r.holders, r.waiting, r.reservations, r.sole, r.converting,
    r.limit, r.closed_ms, r.closed_for_ms, r.retained)
end

-- Returns the only holder of a lock if both can be stored as a plain lock.
local function plain_holder(r)
  if r.kind ~= 'lock' or r.sole == '' or r.converting ~= ''
    or r.waiting + r.reservations + r.limit + r.closed_ms + r.retained > 0 then
    return nil
  end
  local c = get_claim(sub(r.sole, find(r.sole, SEP, 1, true) + 1))
  if not c then
    damaged('the holder of lock ' .. r.name .. ' is missing')
  end
  if c.priority ~= 0 or c.max_hold_ms + c.lock_delay_ms + c.step + c.window_ms > 0 or c.block > 1
    or c.reason ~= '' or c.value or #c.places > 1 or c.places[1][4] ~= 1 or c.places[1][5] ~= 0
    or c.rank ~= rank_of(c.entered_ms, tonumber(sub(c.rank, 17))) then
    return nil
  end
  return c
end

local function packed_plain(c)
  return 'c' .. SEP .. c.ref .. SEP .. c.places[1][3] .. SEP .. c.actor
    .. pack(PLAIN, c.token, c.entered_ms, c.granted_ms, tonumber(sub(c.rank, 17)))
end
