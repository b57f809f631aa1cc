-- repair.lua  KEYS: the shard  →  number of sessions and claims preserved, rows that could not be read
--
-- Sessions and claims are authoritative; everything else is rebuilt from them: resources, queues, counts, checksums,
-- both indexes. Holders remain holders, in the order of their tokens; a holder that conflicts with an earlier one is
-- revoked. Waiting claims queue again in their old order. Tokens never decrease.

write_in_any_case()

local lost = 0
local sessions, claims, limits = {}, {}, {}

-- Runs `read` on a row; false if the row cannot be read.
local function readable(read, ...)
  local fine, found = pcall(read, ...)
  if fine and found then
    return found
  end
  lost = lost + 1
  return false
end

local keys = call('HKEYS', ROWS)
table.sort(keys, precedes)
for _, key in ipairs(keys) do
  local kind, rest = sub(key, 1, 2), sub(key, 3)
  if kind == 's' .. SEP then
    sessions[rest] = readable(get_session, rest) or nil
  elseif kind == 'c' .. SEP then
    claims[#claims + 1] = readable(get_claim, rest) or nil
  elseif kind == 'r' .. SEP then
    local at = find(rest, SEP, 1, true)
    local resource = at and readable(get_resource, sub(rest, 1, at - 1), sub(rest, at + 1))
    if resource then
      limits[key] = { resource.limit, resource.closed_ms, resource.closed_for_ms }
    end
  end
  if kind ~= 'm' then
    dropped[#dropped + 1] = key
    if kind == 't' .. SEP then
      texts[key] = call('HGET', ROWS, key)
    end
  end
end

-- Discard the resources that were read, and start from empty ones for all names in the index.
for key in pairs(resources_used) do
  cache[key] = nil
end
resources_used = {}
for key, kept in pairs(limits) do
  local _, behind = find(key, SEP, 3, true)
  local resource = {
    kind = sub(key, 3, behind - 1), name = sub(key, behind + 1), held = {}, reserved = {}, holders = 0, waiting = 0,
    reservations = 0, sole = '', converting = '', limit = kept[1], closed_ms = kept[2], closed_for_ms = kept[3],
    retained = 0, fresh = true,
  }
  cache[key], resources_used[key] = resource, resource
  if resource.closed_ms > now_ms then
    set_due(resource.closed_ms, SEP .. resource.kind .. SEP .. resource.name)
  end
end
call('DEL', ORDER, DUE)
due_ms = FAR_MS

local kept_sessions = 0
watchers = 0
for id, session in pairs(sessions) do
  kept_sessions = kept_sessions + 1
  session.claims, session.checksum, session.listed, session.identity = 0, 0, ',', nil
  put_session(session)
  in_order('s' .. SEP .. id)
  set_due(session.deadline_ms, id)
  if session.watching then
    in_order('x' .. SEP .. id)
    watchers = watchers + 1
  end
end
for key in pairs(texts) do
  if not sessions[sub(key, 3)] then
    texts[key] = nil
  end
end
log_until_ms = watchers > 0 and now_ms + LOG_KEPT_MS or 0

-- Holders by token, then waiting claims by rank.
table.sort(claims, function(one, other)
  if (one.state == HOLDING) ~= (other.state == HOLDING) then
    return one.state == HOLDING
  elseif one.state == HOLDING and one.token ~= other.token then
    return one.token < other.token
  end
  return precedes(one.rank .. one.ref, other.rank .. other.ref)
end)

local function keep(claim)
  local session = sessions[claim.session]
  session.claims = session.claims + 1
  session.checksum = (session.checksum + mix(claim.n, claim.state == HOLDING and claim.token or 0)) % CHECKSUMS
  session.highest = max(session.highest, claim.n)
end

local function fits_everywhere(claim)
  for _, place in ipairs(claim.places) do
    local resource = get_resource(place[1], place[2])
    if resource.limit == 0 then
      resource.limit = place[5]
    end
    if not fits(place, resource.limit, resource.held, NOTHING) then
      return false
    end
  end
  return true
end

local kept_claims, places = 0, {}
for _, claim in ipairs(claims) do
  token = max(token, claim.token + claim.block - 1)
  if not sessions[claim.session] then
    lost = lost + 1
  else
    kept_claims = kept_claims + 1
    if claim.state == HOLDING and not fits_everywhere(claim) then
      claim.state, claim.reason, claim.by = REVOKED, 'the namespace was repaired', 'lockfast doctor'
      claim.places, claim.wants = {}, ''
    elseif claim.state == HOLDING then
      for _, place in ipairs(claim.places) do
        local resource = get_resource(place[1], place[2])
        add(resource.held, place)
        add_holder(resource, claim)
        resource.retained = resource.retained + (claim.block > 1 and 1 or 0)
        if claim.wants ~= '' then
          resource.converting = claim.ref
        end
        places[#places + 1] = place
      end
      if claim.until_ms > 0 then
        set_due(claim.until_ms, claim.ref)
      end
      keep(claim)
    elseif claim.state == WAITING then
      for _, place in ipairs(claim.places) do
        place[6] = 0
        local resource = get_resource(place[1], place[2])
        if resource.limit == 0 then
          resource.limit = place[5]
        end
        resource.waiting = resource.waiting + 1
        in_order(line_member('w', place, claim))
        places[#places + 1] = place
      end
      keep(claim)
    end
    put_claim(claim)
    list_claim(claim)
  end
end
token = max(token, wall_us)
settle(places)
flush()
return { kept_sessions, kept_claims, lost }
