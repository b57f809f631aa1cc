-- views.lua  (behind table.lua)  →  read-only views

-- Returns the `ended` reply of a session, or nil while it is alive.
local function over(session_id)
  local session = get_session(session_id)
  if not session then
    return { 'E', UNKNOWN_SESSION, '' }
  elseif session.ended ~= '' then
    return { 'E', session.ended, session.by }
  elseif session.deadline_ms <= now_ms then
    return { 'E', EXPIRED, '' }
  end
end

local function claim_view(claim)
  local session = get_session(claim.session)
  local left_ms = session and session.deadline_ms - now_ms or 0
  if claim.until_ms > 0 then
    left_ms = min(left_ms, claim.until_ms - now_ms)
  end
  local since_ms = claim.state == HOLDING and claim.granted_ms or claim.entered_ms
  return {
    claim.session, claim.n, session and session.owner or '', claim.actor, claim.places, claim.state,
    claim.token, claim.priority, claim.value or false, now_ms - since_ms, max(0, left_ms), claim.by,
    claim.reason, claim.block, claim.wants,
  }
end

local function views_of(claims, limit)
  local views = {}
  for i = 1, min(#claims, limit) do
    views[i] = claim_view(claims[i])
  end
  return views
end

local function resource_view(kind, name, waiting_max)
  local resource = get_resource(kind, name)
  -- All reserved places are ahead of all waiting ones.
  local waiting = claims_in('v', resource, waiting_max)
  for _, claim in ipairs(claims_in('w', resource, waiting_max)) do
    waiting[#waiting + 1] = claim
  end
  local holders_max = max(waiting_max, 16)
  return {
    'V', kind, name, views_of(holders_of(resource, holders_max), holders_max),
    views_of(waiting, waiting_max), resource.holders, resource.waiting + resource.reservations,
    resource.limit, max(0, resource.closed_ms - now_ms),
  }
end
