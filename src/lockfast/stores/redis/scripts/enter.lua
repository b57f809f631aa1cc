-- enter.lua  KEYS: the shard  ARGV: session, n, …  →  granted, queued, busy, refused or ended
--
-- A plain claim on a lock passes the row keys themselves: s␟session, n, r␟lock␟name, c␟session␟n␟mode␟actor. The last
-- begins with ? if the claim must not wait.
-- Any other claim: session, n, nothing, actor, queue, options, value?, places, (kind, name, mode, weight, limit)…,
-- session to open…
-- options: priority, head_start_ms, max_hold_ms, lock_delay_ms, block, window_ms; empty for 0, 0, 0, 0, 1, 0.
-- value?: empty for none, else + and the value.

local CLAIMS_MAX, WAITING_MAX, PLACES_MAX = $CLAIMS_MAX, $WAITING_MAX, $PLACES_MAX

local MODES_OF_KIND = $MODES_OF_KIND

local function invalid(why)
  return { 'R', 'invalid', why, 0, 0 }
end

-- Returns why these places can never be held together, or nil.
local function refused_places(places)
  if #places == 0 or #places > PLACES_MAX then
    return invalid('a claim names 1 to ' .. PLACES_MAX .. ' resources, not ' .. #places)
  end
  local seen = {}
  for _, place in ipairs(places) do
    local kind, name, mode, weight, limit = unpack(place)
    local modes = MODES_OF_KIND[kind]
    if #places > 1 then
      if seen[kind .. SEP .. name] then
        return invalid('a claim may name each resource only once')
      end
      seen[kind .. SEP .. name] = true
    end
    if not modes or not modes[mode] then
      return invalid('a ' .. kind .. ' has no mode ' .. mode)
    elseif mode == 'permit' and not (1 <= weight and weight <= limit) then
      return invalid($TOO_MANY_PERMITS)
    end
  end
end

-- Returns why a resource refuses this claim, or nil.
local function refused_by_resources(places, queue)
  for _, place in ipairs(places) do
    local resource = get_resource(place[1], place[2])
    if place[5] ~= 0 and resource.limit ~= 0 and place[5] ~= resource.limit then
      return { 'R', 'limit differs', place[2], place[5], resource.limit }
    elseif queue and resource.waiting >= WAITING_MAX then
      return { 'R', 'queue full', place[2], resource.waiting + 1, WAITING_MAX }
    end
  end
end

-- Parses ARGV: session, places, actor, queue, options, value?, and the index where the session to open begins.
local function asked()
  if ARGV[3] ~= '' then
    local mode, actor = string.match(ARGV[4], '^[^\031]*\031[^\031]*\031[^\031]*\031([^\031]*)\031(.*)$')
    local place = { 'lock', sub(ARGV[3], #LOCK_PREFIX + 1), mode, 1, 0, 0 }
    return sub(ARGV[1], 3), { place }, actor, byte(ARGV[4]) ~= 63, '', '', 5
  end
  local at = 9 + 5 * ARGV[8]
  local places = {}
  for i = 9, at - 1, 5 do
    places[#places + 1] = {
      ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), 0,
    }
  end
  return ARGV[1], places, ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7], at
end

-- Returns the current time, but no earlier than the last claim in these queues entered. If the server's
-- clock was set back, the new claim would be ahead of those that wait.
local function entry_ms(places)
  local entered_ms = now_ms
  for _, place in ipairs(places) do
    local last = get_resource(place[1], place[2]).waiting > 0 and claim_before(place, '~')
    if last then
      entered_ms = max(entered_ms, last.entered_ms)
    end
  end
  return entered_ms
end

return step(function()
  local n = tonumber(ARGV[2])
  local id, places, actor, queue, options, value, at = asked()
  if ARGV[at] then
    local opened = open(at)
    if opened[1] ~= 'D' then
      return opened
    end
  end
  local session, over = live(id)
  if over then
    return over
  end
  local ref = id .. SEP .. ARGV[2]
  if n <= session.highest then
    local known = get_claim(ref)
    if known then
      return view(known)
    elseif is_seen(session, n) then
      return { 'R', 'finished', $ALREADY_RELEASED, 0, 0 }
    end
  end
  if session.claims >= CLAIMS_MAX then
    return { 'R', 'claims full', 'claims of the session', session.claims + 1, CLAIMS_MAX }
  end
  local refused = refused_places(places)
  if not refused and #value - 1 > TEXT_MAX then
    refused = { 'R', 'too large', 'value', #value - 1, TEXT_MAX }
  end
  refused = refused or refused_by_resources(places, queue)
  if refused then
    return refused
  end
  see(session, n)
  put_session(session)
  local priority, head_start_ms, max_hold_ms, lock_delay_ms, block, window_ms = 0, 0, 0, 0, 1, 0
  if options ~= '' then
    priority, head_start_ms, max_hold_ms, lock_delay_ms, block, window_ms =
      string.match(options, '^(%-?%d+) (%-?%d+) (%d+) (%d+) (%d+) (%d+)$')
  end
  local entered_ms = entry_ms(places)
  local claim = {
    ref = ref, session = id, n = n, places = places, state = WAITING,
    -- All queues have the same order: entry time less the head start, then arrival. Every recorded
    -- claim writes to the log, so the next log position is unique.
    rank = rank_of(entered_ms - head_start_ms, position + 1),
    actor = actor, priority = tonumber(priority), entered_ms = entered_ms, token = 0, granted_ms = 0,
    until_ms = 0, max_hold_ms = tonumber(max_hold_ms), lock_delay_ms = tonumber(lock_delay_ms),
    block = tonumber(block), step = 0, wants = '', reason = '', by = '',
    window_ms = tonumber(window_ms),
  }
  if value ~= '' then
    claim.value = sub(value, 2)
  end
  local held = stand(claim, queue)
  if not held and not queue then
    return { 'B', (ahead_of(claim)) }
  end
  session.claims = session.claims + 1
  session.checksum = (session.checksum + mix(n, 0)) % CHECKSUMS
  list_claim(claim)
  if not held then
    for _, place in ipairs(places) do
      log('waiting', place, claim)
    end
  end
  return view(claim)
end)
