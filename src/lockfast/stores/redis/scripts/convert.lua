-- convert.lua  KEYS: the shard  ARGV: session, n, step, mode, queue  →  granted, queued, busy, refused, gone or ended

local STRENGTH = $CONVERSION_STRENGTH

write_in_any_case()

local function owners_of_those_who_update(resource)
  local others = resource.converting ~= '' and { get_claim(resource.converting) } or {}
  if #others == 0 then
    for _, other in ipairs(holders_of(resource, 0)) do
      if place_at(other, resource)[3] == 'update' then
        others[#others + 1] = other
      end
    end
  end
  for i, other in ipairs(others) do
    others[i] = get_session(other.session).owner
  end
  return table.concat(others, ', ')
end

return step(function()
  local claim, over = held_claim(ARGV[1], ARGV[2])
  if not claim then
    return over
  end
  local number, new, queue = tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1'
  if number == claim.step then
    return view(claim)
  elseif number < claim.step then
    return { 'R', 'finished', $LATER_CONVERSION, 0, 0 }
  end
  local place = claim.places[1]
  local old = place[3]
  if #claim.places > 1 or place[1] ~= 'lock' then
    return { 'R', 'invalid', $NOT_CONVERTIBLE, 0, 0 }
  elseif not STRENGTH[new] then
    return { 'R', 'invalid', old .. ' cannot be converted to ' .. new, 0, 0 }
  end
  local resource = get_resource(place[1], place[2])
  claim.step = number
  put_claim(claim)
  if resource.converting == claim.ref then
    resource.converting = ''
    claim.wants = ''
  end
  if STRENGTH[new] <= STRENGTH[old] then
    if old ~= new then
      set_mode(claim, resource, new)
    end
    settle(claim.places)
    return view(claim)
  end
  if resource.converting ~= '' or (old == 'shared' and resource.held.update) then
    return { 'R', 'deadlock', owners_of_those_who_update(resource), 0, 0 }
  elseif new == 'update' or (resource.holders == 1 and resource.closed_ms <= now_ms) then
    set_mode(claim, resource, new)
    settle(claim.places)
    return view(claim)
  elseif not queue then
    settle(claim.places)
    return { 'B', (ahead_of(claim)) }
  end
  -- The claim keeps its granted mode while it waits, ahead of all waiting claims.
  claim.wants = new
  resource.converting = claim.ref
  cancel_reservations(resource, '')
  log('converting', place, claim, new)
  tell_keepers(resource)
  return view(claim)
end)
