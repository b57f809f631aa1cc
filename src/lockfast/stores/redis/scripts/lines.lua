-- lines.lua  (behind shard.lua)  →  the queues of claims: core/lines.py, step by step
--
-- A place is { kind, name, mode, weight, limit, reserved }; reserved is 1 while this place could be
-- held but another place of the claim cannot.

local HOLDING, WAITING, REVOKED = 'holding', 'waiting', 'revoked'
local BLOCKERS_MAX = $BLOCKERS_MAX
local CHECKSUMS = $CHECKSUMS
local MIX_PRIME = $MIX_PRIME

local CONFLICTS = $CONFLICTS

-- Returns the contribution of one claim to its session's checksum. The operator % is inexact near 2^53.
local function mix(n, of_token)
  local x = math.fmod(math.fmod(n * $MIX_FACTOR, MIX_PRIME) + math.fmod(of_token, MIX_PRIME), MIX_PRIME)
  return x * x % CHECKSUMS
end

local function share(place)
  return place[3] == 'permit' and place[4] or 1
end

local function add(counts, place)
  counts[place[3]] = (counts[place[3]] or 0) + share(place)
end

local function subtract(counts, place)
  local left = counts[place[3]] - share(place)
  counts[place[3]] = left ~= 0 and left or nil
end

-- Returns true if a place is compatible with all counted holders and reservations.
local function fits(place, limit, held, reserved)
  local conflicts = CONFLICTS[place[3]]
  for mode in pairs(held) do
    if conflicts[mode] then
      return false
    end
  end
  for mode in pairs(reserved) do
    if conflicts[mode] then
      return false
    end
  end
  if place[3] == 'permit' then
    return (held.permit or 0) + (reserved.permit or 0) + place[4] <= limit
  end
  return true
end

local NOTHING = {}

local function place_of(claim, kind, name)
  for _, place in ipairs(claim.places) do
    if place[2] == name and place[1] == kind then
      return place
    end
  end
end

local function place_at(claim, resource)
  return place_of(claim, resource.kind, resource.name)
end

local function line_prefix(line, at)
  return line .. SEP .. (at.kind or at[1]) .. SEP .. (at.name or at[2]) .. SEP
end

-- Returns the end of the range of members that begin with `prefix`, which ends in the separator.
local function after_prefix(prefix)
  return sub(prefix, 1, -2) .. ' '
end

local function line_member(line, at, claim)
  return line_prefix(line, at) .. claim.rank .. SEP .. claim.ref
end

-- Returns the claims of a queue from member `first` to `last`, at most `limit` (0: all). A member that does not match
-- its claim was left by a step that the server aborted: it is skipped and removed.
local function claims_between(line, at, first, last, limit)
  local kind, name, prefix = at.kind or at[1], at.name or at[2], line_prefix(line, at)
  local cut = #prefix
  while true do
    local found, strays = {}, false
    for _, member in ipairs(scan(first, last, limit)) do
      local claim = get_claim(sub(member, find(member, SEP, cut + 1, true) + 1))
      local place = claim and place_of(claim, kind, name)
      if place and (claim.state == HOLDING) == (line == 'h') and (place[6] == 1) == (line == 'v')
        and member == prefix .. claim.rank .. SEP .. claim.ref then
        found[#found + 1] = claim
      else
        out_of_order(member)
        strays = true
      end
    end
    if not strays or limit == 0 then
      return found
    end
  end
end

local function claims_in(line, at, limit)
  local prefix = line_prefix(line, at)
  return claims_between(line, at, prefix, after_prefix(prefix), limit)
end

-- Returns the head of a queue, which must not be empty.
local function head_of(resource)
  local claim = claims_in('w', resource, 1)[1]
  if not claim then
    damaged('claims that wait for ' .. resource.kind .. ' ' .. resource.name .. ' are missing')
  end
  return claim
end

-- ── holding ──────────────────────────────────────────────────────────────────────────

local function next_token(block)
  $NEXT_TOKEN
  local given = token
  token = given + block - 1
  return given
end

local function unreserve(resource, place, claim)
  subtract(resource.reserved, place)
  resource.reservations = resource.reservations - 1
  place[6] = 0
  out_of_order(line_member('v', place, claim))
end

local function reserve(resource, place, claim)
  add(resource.reserved, place)
  resource.reservations = resource.reservations + 1
  place[6] = 1
  in_order(line_member('v', place, claim))
end

local function add_holder(resource, claim)
  if resource.holders == 0 then
    resource.sole = claim.rank .. SEP .. claim.ref
  else
    local prefix = line_prefix('h', resource)
    if resource.sole ~= '' then
      in_order(prefix .. resource.sole)
      resource.sole = ''
    end
    in_order(prefix .. claim.rank .. SEP .. claim.ref)
  end
  resource.holders = resource.holders + 1
end

local function holders_of(resource, limit)
  if resource.sole ~= '' then
    local holder = get_claim(sub(resource.sole, find(resource.sole, SEP, 1, true) + 1))
    if not holder then
      damaged('the holder of ' .. resource.kind .. ' ' .. resource.name .. ' is missing')
    end
    return { holder }
  elseif resource.holders == 0 then
    return {}
  end
  return claims_in('h', resource, limit)
end

-- Notifies clients that retain the resource that others wait for it.
local function tell_keepers(resource)
  if resource.retained > 0 then
    for _, holder in ipairs(holders_of(resource, 0)) do
      if holder.block > 1 then
        wake(holder, 'wanted')
      end
    end
  end
end

local function queue_up(resource, claim)
  if resource.waiting == 0 then
    tell_keepers(resource)
  end
  resource.waiting = resource.waiting + 1
  in_order(line_member('w', resource, claim))
end

-- Cancels the reservations behind `rank`; settle restores those that still fit, in order.
local function cancel_reservations(resource, rank)
  if resource.reservations == 0 then
    return
  end
  local prefix = line_prefix('v', resource)
  for _, claim in ipairs(claims_between('v', resource, prefix .. rank, after_prefix(prefix), 0)) do
    unreserve(resource, place_at(claim, resource), claim)
    put_claim(claim)
    queue_up(resource, claim)
    wake(claim, 'look')
  end
end

-- Closes a resource: nothing is granted there for `span_ms`.
local function close_for(place, span_ms)
  local resource = get_resource(place[1], place[2])
  if now_ms + span_ms > resource.closed_ms then
    resource.closed_ms = now_ms + span_ms
    resource.closed_for_ms = span_ms
    set_due(resource.closed_ms, SEP .. place[1] .. SEP .. place[2])
  end
  cancel_reservations(resource, '')
  if resource.waiting > 0 then
    -- The first waiter knows when the holders expire, not when the resource reopens.
    wake(head_of(resource), 'look')
  end
end

-- Makes a claim a holder at all its places.
local function hold(claim)
  for _, place in ipairs(claim.places) do
    local resource = get_resource(place[1], place[2])
    if place[6] == 1 then
      unreserve(resource, place, claim)
    end
    add(resource.held, place)
    add_holder(resource, claim)
    if claim.block > 1 then
      resource.retained = resource.retained + 1
    end
    if claim.window_ms > 0 then
      close_for(place, claim.window_ms)
    end
  end
  claim.state = HOLDING
  claim.token = next_token(claim.block)
  claim.granted_ms = now_ms
  if claim.max_hold_ms > 0 then
    claim.until_ms = now_ms + claim.max_hold_ms
    set_due(claim.until_ms, claim.ref)
  end
  local session = get_session(claim.session)
  session.checksum = (session.checksum + mix(claim.n, claim.token) - mix(claim.n, 0)) % CHECKSUMS
  put_session(session)
  put_claim(claim)
  for _, place in ipairs(claim.places) do
    log('granted', place, claim, claim.value)
  end
end

-- ── settling ─────────────────────────────────────────────────────────────────────────

-- Changes the mode of a holder; exclusive mode comes with a new token. The caller must settle.
local function set_mode(claim, resource, mode)
  local place = claim.places[1]
  subtract(resource.held, place)
  resource.held[mode] = (resource.held[mode] or 0) + 1
  resource.converting = ''
  place[3] = mode
  claim.wants = ''
  if mode == 'exclusive' then
    local session = get_session(claim.session)
    local before = mix(claim.n, claim.token)
    claim.token = next_token(claim.block)
    session.checksum = (session.checksum + mix(claim.n, claim.token) - before) % CHECKSUMS
    put_session(session)
  end
  for reserved_mode in pairs(resource.reserved) do
    if CONFLICTS[mode][reserved_mode] then
      cancel_reservations(resource, '')
      break
    end
  end
  put_claim(claim)
  log('converted', place, claim)
end

-- Returns 1 if the claim is retained and other claims wait for what it holds.
local function is_wanted(claim)
  if claim.block > 1 then
    for _, place in ipairs(claim.places) do
      local resource = get_resource(place[1], place[2])
      if resource.waiting > 0 or resource.converting ~= '' then
        return true
      end
    end
  end
  return false
end

-- Returns true if the claim's session has ended, so that it must not be granted anything.
local function session_ended(claim)
  local session = get_session(claim.session)
  return not session or session.ended ~= ''
end

local function settle_one(resource)
  if resource.closed_ms > now_ms then
    return
  end
  resource.closed_ms = 0
  local keepers = {}
  if resource.converting ~= '' then
    if resource.holders > 1 then
      return
    end
    local claim = get_claim(resource.converting)
    if not claim then
      damaged('the claim that converts at ' .. resource.kind .. ' ' .. resource.name .. ' is missing')
    elseif session_ended(claim) then
      return
    end
    set_mode(claim, resource, claim.wants)
    wake(claim, 'granted', claim.token)
    keepers[1] = claim
  end
  local moved = false
  while resource.waiting > 0 and resource.closed_ms <= now_ms do
    local claim = head_of(resource)
    local place = place_at(claim, resource)
    if not fits(place, resource.limit, resource.held, resource.reserved) then
      break
    end
    moved = true
    resource.waiting = resource.waiting - 1
    out_of_order(line_member('w', resource, claim))
    local lacking = 0
    for _, other in ipairs(claim.places) do
      if other[6] ~= 1 then
        lacking = lacking + 1
      end
    end
    -- A claim of an ended session stays reserved until a later step removes it.
    if lacking == 1 and not session_ended(claim) then
      hold(claim)
      wake(claim, 'granted', claim.token)
      keepers[#keepers + 1] = claim
    else
      reserve(resource, place, claim)
      put_claim(claim)
    end
  end
  if moved and resource.waiting > 0 and resource.holders + resource.reservations > 1 then
    -- The first waiter watches the processes of all holders, which have changed.
    wake(head_of(resource), 'look')
  end
  for _, claim in ipairs(keepers) do
    if is_wanted(claim) then
      wake(claim, 'wanted')
    end
  end
end

local function settle(places)
  for _, place in ipairs(places) do
    settle_one(get_resource(place[1], place[2]))
  end
end

-- ── entering and leaving ─────────────────────────────────────────────────────────────

-- Wakes the next waiter, because another claim is now directly ahead of it.
local function hint_behind(place, rank)
  local prefix = line_prefix('w', place)
  local behind = claims_between('w', place, prefix .. rank .. ' ', after_prefix(prefix), 1)[1]
  if behind then
    wake(behind, 'look')
  end
end

local function could_hold(resource, place, rank)
  if resource.closed_ms > now_ms or resource.converting ~= '' then
    return false
  end
  if resource.waiting > 0 then
    local prefix = line_prefix('w', place)
    if claims_between('w', place, prefix, prefix .. rank, 1)[1] then
      return false
    end
  end
  local limit = resource.limit ~= 0 and resource.limit or place[5]
  if not fits(place, limit, resource.held, NOTHING) then
    return false
  end
  if resource.reservations > 0 and not fits(place, limit, resource.held, resource.reserved) then
    local prefix = line_prefix('v', place)
    if not claims_between('v', place, prefix .. rank, after_prefix(prefix), 1)[1] then
      return false -- the usual case: all reservations are ahead
    end
    local ahead = {}
    for _, claim in ipairs(claims_between('v', place, prefix, prefix .. rank, 0)) do
      add(ahead, place_at(claim, resource))
    end
    return fits(place, limit, resource.held, ahead)
  end
  return true
end

-- Enters a claim into all its queues. Returns true if it is granted at once. Without `queue`, a claim
-- that cannot be granted now is not recorded.
local function stand(claim, queue)
  local resources, could, at_once = {}, {}, true
  for i, place in ipairs(claim.places) do
    resources[i] = get_resource(place[1], place[2])
    could[i] = could_hold(resources[i], place, claim.rank)
    at_once = at_once and could[i]
  end
  if not at_once and not queue then
    return false
  end
  for i, place in ipairs(claim.places) do
    local resource = resources[i]
    if place[5] ~= 0 and resource.limit == 0 then
      resource.limit = place[5]
    end
    if resource.reservations > 0
      and not (could[i] and fits(place, resource.limit, resource.held, resource.reserved)) then
      cancel_reservations(resource, claim.rank)
    end
  end
  if at_once then
    hold(claim)
  else
    for i, place in ipairs(claim.places) do
      if could[i] then
        reserve(resources[i], place, claim)
      else
        queue_up(resources[i], claim)
      end
    end
    put_claim(claim)
  end
  for i, place in ipairs(claim.places) do
    if resources[i].waiting > 0 then
      settle_one(resources[i])
      hint_behind(place, claim.rank)
    end
  end
  return at_once
end

-- Removes a claim from all its queues. The caller must settle afterwards.
local function remove_places(claim)
  for _, place in ipairs(claim.places) do
    local resource = get_resource(place[1], place[2])
    if claim.state == HOLDING then
      subtract(resource.held, place)
      resource.holders = resource.holders - 1
      if claim.block > 1 then
        resource.retained = resource.retained - 1
      end
      if resource.sole ~= '' then
        resource.sole = ''
      else
        out_of_order(line_member('h', place, claim))
      end
      if resource.converting == claim.ref then
        resource.converting = ''
      end
    elseif place[6] == 1 then
      unreserve(resource, place, claim)
    else
      resource.waiting = resource.waiting - 1
      out_of_order(line_member('w', place, claim))
      if resource.waiting > 0 then
        hint_behind(place, claim.rank)
      end
    end
  end
  if claim.until_ms > 0 then
    not_due(claim.ref)
  end
end

-- ── looking ──────────────────────────────────────────────────────────────────────────

-- Returns the last claim in a queue before `rank`.
local function claim_before(place, rank)
  local prefix = line_prefix('w', place)
  write_added()
  local skipped = 0
  while true do
    local member = call('ZREVRANGEBYLEX', ORDER, '(' .. prefix .. rank, '[' .. prefix, 'LIMIT', skipped, 1)[1]
    if not member then
      return nil
    elseif not removed[member] then
      local claim = claims_between('w', place, member, member .. '\0', 1)[1]
      if claim then
        return claim
      end
    end
    skipped = skipped + 1
  end
end

-- Returns the claims directly ahead of a claim, and when they expire if not renewed (nil: never).
local function ahead_of(claim)
  local found, over_ms = {}, nil
  local function sooner(at_ms)
    if at_ms ~= 0 and (not over_ms or at_ms < over_ms) then
      over_ms = at_ms
    end
  end
  for _, place in ipairs(claim.places) do
    if place[6] ~= 1 then
      local resource = get_resource(place[1], place[2])
      sooner(resource.closed_ms)
      local before = resource.waiting > 0 and claim.state == WAITING and claim_before(place, claim.rank)
      if before then
        found[#found + 1] = before
      else
        for _, holder in ipairs(holders_of(resource, BLOCKERS_MAX)) do
          found[#found + 1] = holder
        end
        if resource.reservations > 0 and claim.state == WAITING then
          local prefix = line_prefix('v', place)
          for _, other in ipairs(claims_between('v', place, prefix, prefix .. claim.rank, BLOCKERS_MAX)) do
            found[#found + 1] = other
          end
        end
      end
    end
  end
  local blockers, seen = {}, { [claim.ref] = true }
  for _, other in ipairs(found) do
    if not seen[other.ref] and #blockers < BLOCKERS_MAX then
      seen[other.ref] = true
      local session = get_session(other.session)
      if not session then
        damaged('the session of claim ' .. other.ref .. ' is missing')
      end
      sooner(session.deadline_ms)
      sooner(other.until_ms)
      local held = other.state == HOLDING
      blockers[#blockers + 1] = {
        other.session, other.n, session.owner, session.process, session.renewals, held and 1 or 0,
        other.token, now_ms - (held and other.granted_ms or other.entered_ms), session.ttl_ms,
      }
    end
  end
  return blockers, over_ms
end

-- Returns the state of a claim.
local function view(claim)
  if claim.state == HOLDING and claim.wants == '' then
    local mode = #claim.places == 1 and claim.places[1][3] or ''
    return { 'G', claim.token, now_ms - claim.granted_ms, mode, is_wanted(claim) and 1 or 0 }
  elseif claim.state == REVOKED then
    return { 'X', claim.reason, claim.by }
  end
  local blockers, over_ms = ahead_of(claim)
  return { 'Q', blockers, over_ms and max(1, over_ms - now_ms) or -1 }
end
