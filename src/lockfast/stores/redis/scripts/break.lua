-- break.lua  KEYS: the shard  ARGV: session, n, detail, ahead of session, ahead of n, (session, n, held)…  →  done

write_in_any_case()

-- Returns a rank directly before `rank` and after all ranks that were before it.
local function just_before(rank)
  return sub(rank, 1, -17) .. format('%016.0f~%016.0f', sub(rank, -16) - 1, position + 1)
end

return step(function()
  for i = 6, #ARGV, 3 do
    local seen = get_claim(ARGV[i] .. SEP .. ARGV[i + 1])
    if not seen or seen.state == REVOKED
      or (seen.state == HOLDING and seen.wants == '') ~= (ARGV[i + 2] == '1') then
      return { 'D', 0 }
    end
  end
  local claim = get_claim(ARGV[1] .. SEP .. ARGV[2])
  if not claim or not (claim.state == WAITING or claim.wants ~= '') or session_ended(claim) then
    return { 'D', 0 }
  end
  if ARGV[4] ~= '' then
    local other = get_claim(ARGV[4] .. SEP .. ARGV[5])
    if not other or other.state ~= WAITING or claim.state ~= WAITING
      or not precedes(other.rank, claim.rank) then
      return { 'D', 0 }
    end
    remove_places(claim)
    claim.rank = just_before(other.rank)
    if stand(claim, true) then
      wake(claim, 'granted', claim.token)
      if is_wanted(claim) then
        wake(claim, 'wanted')
      end
    else
      for _, place in ipairs(claim.places) do
        log('waiting', place, claim, 'ahead of a reservation')
      end
      wake(claim, 'look')
    end
  elseif claim.wants ~= '' then
    local resource = get_resource(claim.places[1][1], claim.places[1][2])
    resource.converting = ''
    claim.wants = ''
    claim.reason = ARGV[3]
    put_claim(claim)
    log('gave_up', claim.places[1], claim, 'deadlock')
    wake(claim, 'look')
    settle(claim.places)
  else
    settle(revoke_claim(claim, 'gave_up', 'deadlock', ARGV[3]))
  end
  return { 'D', 1 }
end)
