-- table.lua  (behind lines.lua)  →  sessions, and what several commands share, as in core/table.py
--
-- Expired sessions and claims are removed before the command is executed.

local ENDED_KEPT_MS = $ENDED_KEPT_MS
local REAPED_PER_STEP = $REAPED_PER_STEP
local EXPIRED = $EXPIRED
local UNKNOWN_SESSION = $UNKNOWN_SESSION
local TEXT_MAX = $TEXT_MAX

-- ── the end of a claim ───────────────────────────────────────────────────────────────

-- Removes a claim from all its queues and from its session.
local function remove(claim, what, detail)
  local held = claim.state == HOLDING
  remove_places(claim)
  delete_claim(claim)
  local session = get_session(claim.session)
  session.claims = session.claims - 1
  session.checksum = (session.checksum - mix(claim.n, held and claim.token or 0)) % CHECKSUMS
  put_session(session)
  if not held and (what == 'released' or what == 'expired') then
    what = 'gave_up'
  end
  for _, place in ipairs(claim.places) do
    log(what, place, claim, detail)
  end
end

-- Applies the lock_delay of a lost claim, for resources that cannot check tokens.
local function delay(claim)
  if claim.lock_delay_ms > 0 then
    for _, place in ipairs(claim.places) do
      close_for(place, claim.lock_delay_ms)
    end
  end
end

-- Revokes a claim and records the reason for its client. Returns its places; the caller must settle them.
local function revoke_claim(claim, what, reason, by)
  local places = claim.places
  local held = claim.state == HOLDING
  remove(claim, what, reason)
  if held then
    delay(claim)
  end
  claim.state = REVOKED
  claim.reason = reason
  claim.by = by
  claim.wants = ''
  claim.places = {}
  put_claim(claim)
  list_claim(claim)
  wake(claim, 'look')
  return places
end

-- ── the end of a session ─────────────────────────────────────────────────────────────

-- Enables the log from here on, and for some time after it was last read.
local function keep_log()
  log_until_ms = max(log_until_ms, now_ms + LOG_KEPT_MS)
end

local function set_watching(session, on)
  session.watching = on
  keep_log()
  if on then
    in_order('x' .. SEP .. session.id)
    watchers = watchers + 1
  else
    out_of_order('x' .. SEP .. session.id)
    watchers = watchers - 1
  end
end

-- Returns the claims of a session by number, at most `limit` (0: all), and whether there are more.
local function claims_of(session, limit)
  local numbers, found, listed = {}, {}, 0
  for n in string.gmatch(session.listed, '%d+') do
    listed = listed + 1
    numbers[listed] = tonumber(n)
  end
  if limit == 0 or listed <= limit then
    local prefix = 'c' .. SEP .. session.id .. SEP
    for _, member in ipairs(scan(prefix, after_prefix(prefix), limit == 0 and 0 or limit - listed + 1)) do
      numbers[#numbers + 1] = tonumber(sub(member, -16))
    end
  end
  table.sort(numbers)
  local taken = limit == 0 and #numbers or min(limit, #numbers)
  for i = 1, taken do
    local claim = get_claim(session.id .. SEP .. text(numbers[i]))
    if claim then
      found[#found + 1] = claim
    else
      -- Left by a step that the server aborted.
      out_of_order('c' .. SEP .. session.id .. SEP .. format('%016.0f', numbers[i]))
    end
  end
  return found, #numbers > taken
end

local to_end = $ENDED_PER_STEP -- places of ended sessions that this step may still remove

-- Removes claims of an ended session, up to the limit of a step. Returns their places; the caller must settle them.
-- If claims remain, the session is due immediately, so that the next write of any client continues.
local function end_claims(session)
  local abnormal = session.ending ~= 'released'
  local places, lost = {}, {}
  local claims, more = claims_of(session, to_end + 1)
  for _, claim in ipairs(claims) do
    if to_end == 0 then
      more = true
      break
    end
    to_end = max(0, to_end - max(1, #claim.places))
    if claim.state == REVOKED then
      delete_claim(claim)
    else
      if abnormal and claim.state == HOLDING then
        lost[#lost + 1] = claim
      end
      remove(claim, session.ending, session.ended)
      for _, place in ipairs(claim.places) do
        places[#places + 1] = place
      end
    end
  end
  for _, claim in ipairs(lost) do
    delay(claim)
  end
  session.deadline_ms = now_ms
  if not more then
    session.ending = ''
    session.deadline_ms = now_ms + ENDED_KEPT_MS
  end
  put_session(session)
  set_due(session.deadline_ms, session.id)
  return places
end

-- Marks a session as ended: from now on its commands are answered `ended`, and its claims are granted nothing.
-- `what` is the event to log for its claims.
local function mark_ended(session, reason, what, by)
  session.ended = reason
  session.by = by or ''
  session.ending = what
  session.unseen = ''
  put_session(session)
  if session.watching then
    set_watching(session, false)
  end
  if what ~= 'released' then
    wakes[#wakes + 1] = { session.inbox, session.id, 0, 'ended', 0 }
  end
end

-- Ends a session and removes its first claims. Returns the places to settle.
local function end_session(session, reason, what, by)
  mark_ended(session, reason, what, by)
  return end_claims(session)
end

local function delete_session(session)
  local key = 's' .. SEP .. session.id
  cache[key] = false
  sessions_changed[session.id] = nil
  dropped[#dropped + 1] = key
  dropped[#dropped + 1] = 'i' .. SEP .. session.id
  dropped[#dropped + 1] = 't' .. SEP .. session.id
  out_of_order(key)
end

-- Ends the sessions and claims that have expired by the server's clock.
local function reap()
  local places, ending, held_too_long = {}, {}, {}
  local function to_settle(more)
    for _, place in ipairs(more) do
      places[#places + 1] = place
    end
  end
  for _, member in ipairs(call('ZRANGEBYSCORE', DUE, '-inf', text(now_ms), 'LIMIT', 0, REAPED_PER_STEP)) do
    not_due(member)
    local at = find(member, SEP, 1, true)
    if at == 1 then
      local behind = find(member, SEP, 2, true)
      places[#places + 1] = { sub(member, 2, behind - 1), sub(member, behind + 1) }
    elseif at then
      held_too_long[#held_too_long + 1] = member
    else
      local session = get_session(member)
      if not session then
        -- nothing to end
      elseif session.ending ~= '' then
        ending[#ending + 1] = session
      elseif session.deadline_ms > now_ms then
        set_due(session.deadline_ms, member)
      elseif session.ended ~= '' then
        delete_session(session)
      else
        mark_ended(session, EXPIRED, 'expired')
        ending[#ending + 1] = session
      end
    end
  end
  table.sort(ending, function(one, other)
    if one.deadline_ms ~= other.deadline_ms then
      return one.deadline_ms < other.deadline_ms
    end
    return precedes(one.id, other.id)
  end)
  for _, session in ipairs(ending) do
    to_settle(end_claims(session))
  end
  for _, ref in ipairs(held_too_long) do
    local claim = get_claim(ref)
    if claim and claim.state == HOLDING and not session_ended(claim) then
      to_settle(revoke_claim(claim, 'expired', $MAX_HOLD_ELAPSED, ''))
    end
  end
  -- Settle after all expired sessions are marked, so that none of them is granted a lock.
  settle(places)
  due_ms = first_due()
  if due_ms == FAR_MS and scan('s' .. SEP, 's ', 1)[1] then
    damaged('the instants at which sessions expire are missing (' .. DUE .. ')')
  end
end

-- Returns the live session, or nil and the reply that says how it ended.
local function live(session_id)
  local session = get_session(session_id)
  if not session then
    return nil, { 'E', UNKNOWN_SESSION, '' }
  end
  if session.ended == '' and session.deadline_ms <= now_ms then
    settle(end_session(session, EXPIRED, 'expired'))
  end
  if session.ended ~= '' then
    return nil, { 'E', session.ended, session.by }
  end
  return session
end

-- The held claim, or nil and the reply that says how it ended.
local function held_claim(session_id, n)
  local _, over = live(session_id)
  if over then
    return nil, over
  end
  local claim = get_claim(session_id .. SEP .. n)
  if not claim then
    return nil, { 'X', $NOT_HELD, '' }
  elseif claim.state ~= HOLDING then
    return nil, view(claim)
  end
  return claim
end

-- Ends a session by command. The last value of the reply is 1 if claims remain: repeat the command.
local function end_by_command(session_id, reason, what, by)
  local session = get_session(session_id)
  if not session then
    return { 'D', 0, 0 }
  end
  local found = session.ended == '' and 1 or 0
  if found == 1 then
    settle(end_session(session, reason, what, by))
  end
  return { 'D', found, session.ending ~= '' and 1 or 0 }
end

-- ── claim numbers: which ones were seen ──────────────────────────────────────────────

local function each_unseen(session)
  return string.gmatch(session.unseen, '(%d+)%-(%d+),')
end

local function range(low, high)
  return low <= high and text(low) .. '-' .. text(high) .. ',' or ''
end

local function is_seen(session, n)
  for low, high in each_unseen(session) do
    if tonumber(low) <= n and n <= tonumber(high) then
      return false
    end
  end
  return n <= session.highest
end

-- Records a claim number. Skipped numbers stay unseen: they may still be in flight.
local function see(session, n)
  if n > session.highest then
    session.unseen = session.unseen .. range(session.highest + 1, n - 1)
    session.highest = n
  elseif session.unseen ~= '' then
    local left = {}
    for low, high in each_unseen(session) do
      low, high = tonumber(low), tonumber(high)
      if low <= n and n <= high then
        left[#left + 1] = range(low, n - 1) .. range(n + 1, high)
      else
        left[#left + 1] = range(low, high)
      end
    end
    session.unseen = table.concat(left)
  end
end

-- Treats every number below `lowest` as seen: the client will not use them again.
local function forget_below(session, lowest)
  session.highest = max(session.highest, lowest - 1)
  if session.unseen ~= '' then
    local left = {}
    for low, high in each_unseen(session) do
      left[#left + 1] = range(max(tonumber(low), lowest), tonumber(high))
    end
    session.unseen = table.concat(left)
  end
end

-- ── opening, also along with the first claim ────────────────────────────────────────

-- ARGV has id, ttl_ms, owner, metadata, inbox, process from index `at` on.
local function open(at)
  local id, ttl_ms, owner, metadata = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  if get_session(id) then
    local _, over = live(id)
    return over or { 'D', 1 }
  end
  if #owner > TEXT_MAX then
    return { 'R', 'too large', 'owner', #owner, TEXT_MAX }
  elseif #metadata > TEXT_MAX then
    return { 'R', 'too large', 'metadata', #metadata, TEXT_MAX }
  end
  put_session({
    id = id, ttl_ms = ttl_ms, owner = owner, inbox = ARGV[at + 4], process = ARGV[at + 5],
    deadline_ms = now_ms + ttl_ms, renewals = 0, highest = 0, unseen = '', claims = 0, checksum = 0,
    watching = false, ended = '', by = '', ending = '', listed = ',',
  })
  in_order('s' .. SEP .. id)
  if metadata ~= '' then
    texts['t' .. SEP .. id] = metadata
  end
  set_due(now_ms + ttl_ms, id)
  return { 'D', 0 }
end

-- ── from beginning to end ────────────────────────────────────────────────────────────

-- Executes a command that writes.
local function step(command)
  if log_until_ms > 0 and watchers == 0 and now_ms >= log_until_ms then
    drops_log = true
    log_until_ms = 0
  end
  if now_ms >= due_ms then
    reap()
  end
  local reply = command()
  flush()
  return answer(reply)
end
