-- passing.lua  (before enter_last.lua and leave_next.lua)  →  what both need, and the ways before them do not

local struct = struct
local pack, unpack_from = struct.pack, struct.unpack

-- now_ms, wall_us
local function clock()
  if keys[5] then
    local now_ms, wall_us = string.match(keys[5], '(%d+) (%d+)')
    return now_ms + 0, wall_us + 0
  end
  local time = call('TIME')
  local wall_us = time[1] * 1000000 + time[2]
  return (wall_us - wall_us % 1000) / 1000, wall_us
end

-- The row of a claim on one lock that asks for nothing else: as rows.lua has it, salt included.
local function claim_row(state, n, token, entered_ms, granted_ms, rank, actor, name, mode)
  local s = (n * 40503 + token + entered_ms) % 67108859
  local a, b, c = s % 251, math.floor(s / 251) % 251, math.floor(s / 63001) % 251
  return pack('<BHdddddddddddI4c0I4c0I4I4I4I4I4c0I4c0I4c0ddBBBBBBBBBBBBBBBBBBBBBBBBB',
    state, 1, n, token, entered_ms, granted_ms, 0, 0, 0, 1, 0, 0, 0, #rank, rank, #actor, actor, 0, 0, 0, 0,
    4, 'lock', #name, name, #mode, mode, 1, 0, 0,
    a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b, c, c, c, c, c, c, c, c)
end
