-- resize.lua  KEYS: the shard  ARGV: kind, name, limit  →  done or refused

write_in_any_case()

return step(function()
  local kind, name, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
  if kind ~= 'semaphore' or limit < 1 then
    return { 'R', 'invalid', $NO_LIMIT, 0, 0 }
  end
  local resource = get_resource(kind, name)
  if resource.holders == 0 and resource.waiting == 0 and resource.reservations == 0 then
    return { 'D', 0 }
  end
  local lowered = limit < resource.limit
  local places = { { kind, name } }
  resource.limit = limit
  cancel_reservations(resource, '')
  if lowered then
    -- A claim for more permits than the limit would block the queue for good.
    for _, claim in ipairs(claims_in('w', resource, 0)) do
      local weight = place_at(claim, resource)[4]
      if weight > limit then
        local reason = $TOO_MANY_PERMITS
        for _, place in ipairs(revoke_claim(claim, 'gave_up', reason, '')) do
          places[#places + 1] = place
        end
      end
    end
  end
  settle(places)
  return { 'D', 1 }
end)
