-- passing.lua  (before enter_last.lua and leave_next.lua)  →  what these two fast paths share

local struct = struct
local pack, unpack_from = struct.pack, struct.unpack

local function clock()
  local now_ms, wall_us
  $READ_CLOCK
  return now_ms, wall_us
end

-- Returns the row of a claim on one lock without options, packed as by rows.lua, salt included.
local function claim_row(state, n, token, entered_ms, granted_ms, rank, actor, name, mode)
  local s = (n * $MIX_FACTOR + token + entered_ms) % $MIX_PRIME
  local a, b, c = s % 251, math.floor(s / 251) % 251, math.floor(s / 63001) % 251
  return pack('<BHdddddddddddI4c0I4c0I4I4I4I4I4c0I4c0I4c0ddBBBBBBBBBBBBBBBBBBBBBBBBB',
    state, 1, n, token, entered_ms, granted_ms, 0, 0, 0, 1, 0, 0, 0, #rank, rank, #actor, actor, 0, 0, 0, 0,
    4, 'lock', #name, name, #mode, mode, 1, 0, 0,
    a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b, c, c, c, c, c, c, c, c)
end
