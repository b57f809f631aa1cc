-- node.lua  one node of a majority, in Redis: the rules of node.py, request by request.
-- KEYS: rows, index, idle, due
-- ARGV: request, clock (us; "" for the server's), skew (us), silence (ms), fields of the request
--
-- rows   hash    run, floor, silent (until, ms), swept (ms) · L kind US name -> lock · S id -> session
-- index  zset    in byte order: B ballot · C session US n US kind US name · N kind US name · S session
-- idle   zset    locks, by a time of use; later uses do not move the entry
-- due    zset    sessions, by a deadline; a renewal does not move the entry
--
-- A request that takes or gives a lock reads all its rows with one command and writes them with another, because
-- each command costs a script several microseconds.
--
-- The sections are functions, one inside the other: a function of Lua finds the variables of its own level by a search
-- through all that were captured there, and those of outer levels without. On one level the search took a third of
-- the time of a request. For the same reason each request is executed as soon as it is defined.
local ROWS, INDEX, IDLE, DUE = unpack(KEYS)
local call, pack, unpack_ = redis.call, cmsgpack.pack, cmsgpack.unpack
local US, WAITING_MS, WAITING_MAX = '\31', 2000, 64
local SWEEP, KEPT_MS, WRITE_MAX = 16, 600000, 1000
local EXPIRED, CLOSED = '$EXPIRED', '$CLOSED'
local request, skew_us, silence_ms = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local grace_ms = math.floor(2 * skew_us / 1000)

local wall_us = tonumber(ARGV[2])
if not wall_us then
  local time = call('TIME')
  wall_us = time[1] * 1000000 + time[2]
end
local now_ms = math.floor(wall_us / 1000)

local wakes = {}
local fields, at = ARGV, 4
local function text() at = at + 1; return fields[at] end
local function number() return tonumber(text()) end
local function maybe()
  local found = text()
  return found ~= '' and string.sub(found, 2)
end
local function decimal(x) return string.format('%.0f', x) end

-- ── the node itself ──────────────────────────────────────────────────────────────────

local function begin(run, from_ms)
  call('HSET', ROWS, 'run', run, 'silent', decimal(from_ms + silence_ms + grace_ms),
       'floor', decimal(wall_us + skew_us))
end

if request == 'hello' then
  -- A restarted server may have lost leases and ballots. If it has run for longer than the
  -- silence, a new namespace has nothing to lose.
  local info = call('INFO', 'server')
  local run = string.match(info, 'run_id:(%w+)')
  -- Redis subtracts whole seconds of the wall clock, so it may have run for almost a second less.
  local uptime_ms = math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(%d+)')) - 1) * 1000
  local known = call('HGET', ROWS, 'run')
  if not known then
    begin(run, now_ms - uptime_ms)
    if uptime_ms > silence_ms + grace_ms then call('HSET', ROWS, 'floor', 0) end
  elseif known ~= run then
    begin(run, now_ms)
  end
  return run
end

-- Most requests name a session and a lock in these places; elsewhere there is no such row.
local first_session = ARGV[5] or ''
local first_lock = (ARGV[7] or '') .. US .. (ARGV[8] or '')
local read = call('HMGET', ROWS, 'floor', 'silent', 'swept', 'S' .. first_session, 'L' .. first_lock)
if not read[1] then
  -- The keys disappeared while the server was running: somebody flushed them.
  begin('flushed', now_ms)
  read = call('HMGET', ROWS, 'floor', 'silent', 'swept', '', '')
end
local floor, silent_ms, swept_ms = tonumber(read[1]), tonumber(read[2]), tonumber(read[3] or 0)

return (function()

-- ── rows ─────────────────────────────────────────────────────────────────────────────

-- A lock and a session are lists of fields; the place of each field stands behind a dollar sign.

local sessions = {[first_session] = read[4] and unpack_(read[4])}
local locks = {[first_lock] = read[5] and unpack_(read[5]) or nil}
local changed, fresh = {}, {}
local function session_of(id)
  if sessions[id] == nil then
    local found = call('HGET', ROWS, 'S' .. id)
    sessions[id] = found and unpack_(found)
  end
  return sessions[id]
end
local function put_session(id, s)
  sessions[id] = s
  changed['S' .. id] = s
end
local function lock_of(key)
  if not locks[key] then
    local found = key ~= first_lock and call('HGET', ROWS, 'L' .. key)
    fresh[key] = not found
    locks[key] = found and unpack_(found) or {0, now_ms, '', 0, 0, '', false, 0, 0, 0, 0, 0, {}, 0}
  end
  return locks[key]
end
local function put_lock(key, l)
  if fresh[key] then
    call('ZADD', IDLE, now_ms, key)
    fresh[key] = false
  end
  changed['L' .. key] = l
end
local function write()
  local rows, count = {}, 0
  for field, row in pairs(changed) do
    rows[count + 1], rows[count + 2] = field, pack(row)
    count = count + 2
    if count == WRITE_MAX then
      call('HSET', ROWS, unpack(rows))
      rows, count = {}, 0
    end
  end
  if count > 0 then call('HSET', ROWS, unpack(rows)) end
end
local function key_of(kind, name) return kind .. US .. name end
local function ballot_member(ballot) return 'B' .. string.format('%016.0f', ballot) end
local function claim_member(id, n, key)
  return 'C' .. id .. US .. string.format('%016.0f', n) .. US .. key
end

local function why_ended(s)
  if s[$ENDED] ~= '' or s[$DEADLINE] > now_ms then return s[$ENDED] end
  return EXPIRED
end
local function renew(s) s[$DEADLINE] = now_ms + s[$TTL] + grace_ms end
local function live(id)
  local s = session_of(id)
  if not s then return nil, 'unknown', '' end
  local why = why_ended(s)
  if why ~= '' then return nil, 'ended', why end
  return s
end
local function create(id, ttl, owner, metadata, inbox, process)
  local s = {ttl, owner, metadata, inbox, process, 0, 0, '', 0, 0, 0}
  renew(s)
  put_session(id, s)
  call('ZADD', INDEX, 0, 'S' .. id)
  call('ZADD', DUE, s[$DEADLINE], id)
  return s
end
local function is_live(l)
  if l[$SESSION] == '' then return false end
  local s = session_of(l[$SESSION])
  return s and why_ended(s) == '' and (l[$HOLD] == 0 or l[$HOLD] > now_ms)
end
local function shut_until(l)
  local until_ms = l[$SHUT]
  if l[$SESSION] ~= '' and l[$DELAY] > 0 and not is_live(l) then
    local s = session_of(l[$SESSION])
    local ended_ms = s[$ENDED] ~= '' and s[$ENDED_MS] or s[$DEADLINE]
    if l[$HOLD] > 0 then ended_ms = math.min(ended_ms, l[$HOLD]) end
    until_ms = math.max(until_ms, ended_ms + l[$DELAY])
  end
  return until_ms
end

-- The contribution of one claim to the checksum, as in core/checksum.py.
local function mix(n, ballot)
  local x = math.fmod(math.fmod(n * 40503, 67108859) + math.fmod(ballot, 67108859), 67108859)
  return math.fmod(x * x, 4294967296)
end
local function hold(key, l, id, s, n, ballot, actor, value, max_hold_ms, delay_ms, window_ms, flight)
  l[$HIGHEST] = math.max(l[$HIGHEST], ballot)
  l[$USED], l[$SINCE] = now_ms, now_ms
  l[$SESSION], l[$N], l[$BALLOT], l[$ACTOR], l[$VALUE] = id, n, ballot, actor, value
  l[$HOLD] = max_hold_ms > 0 and now_ms + max_hold_ms or 0
  l[$DELAY], l[$FLIGHT] = delay_ms, flight
  if window_ms > 0 then l[$SHUT], l[$SHUT_BY] = now_ms + window_ms, ballot end
  s[$COUNT], s[$SUM] = s[$COUNT] + 1, math.fmod(s[$SUM] + mix(n, ballot), 4294967296)
  call('ZADD', INDEX, 0, claim_member(id, n, key), 0, 'N' .. key)
end
local function free(key, l)
  local id = l[$SESSION]
  local s = session_of(id)
  if s then
    s[$COUNT] = s[$COUNT] - 1
    s[$SUM] = math.fmod(s[$SUM] - mix(l[$N], l[$BALLOT]) + 4294967296, 4294967296)
  end
  call('ZREM', INDEX, claim_member(id, l[$N], key), 'N' .. key)
  l[$SESSION], l[$N], l[$BALLOT], l[$HOLD], l[$DELAY] = '', 0, 0, 0, 0
  l[$USED] = now_ms
  return id, s
end
local function undo_window(l)
  if l[$SHUT_BY] == l[$BALLOT] then l[$SHUT], l[$SHUT_BY] = 0, 0 end
end
local function shut(l, span_ms)
  if span_ms > 0 then
    l[$SHUT], l[$SHUT_BY] = math.max(l[$SHUT], now_ms + span_ms), 0
  end
end
local function contenders_of(l)
  local count = 0
  for _, each in pairs(l[$WAITING]) do
    if each[4] > now_ms then count = count + 1 end
  end
  return count
end
local function wake_next(l)
  if shut_until(l) > now_ms then return end
  local first, first_key
  for key, each in pairs(l[$WAITING]) do
    if each[4] > now_ms and (not first or each[1] < first[1]
        or (each[1] == first[1] and key < first_key)) then
      first, first_key = each, key
    end
  end
  if first then
    l[$WAITING][first_key] = nil
    local id = string.match(first_key, '^[^\31]*')
    if ARGV[2] == '' then call('PUBLISH', first[3], id .. ' ' .. decimal(first[2])) end
    wakes[#wakes + 1] = {first[3], id, first[2]}
  end
end
local function claims_of(id)
  -- The members of one session are adjacent; the range ends at the character after the separator.
  local found = {}
  for _, member in ipairs(call('ZRANGEBYLEX', INDEX, '[C' .. id .. US, '(C' .. id .. ' ')) do
    local n, key = string.match(string.sub(member, #id + 3), '^(%d+)\31(.*)$')
    found[#found + 1] = {tonumber(n), key}
  end
  return found
end
local function holder_of(l)
  local s = session_of(l[$SESSION])
  local until_ms = s[$DEADLINE] - grace_ms
  if l[$HOLD] > 0 then until_ms = math.min(until_ms, l[$HOLD]) end
  return {l[$SESSION], l[$N], l[$BALLOT], s[$OWNER], s[$PROCESS], s[$RENEWALS], l[$ACTOR], l[$VALUE],
          now_ms - l[$SINCE], math.max(0, until_ms - now_ms)}
end
local function purge(id)
  for _, claim in ipairs(claims_of(id)) do
    local l = lock_of(claim[2])
    l[$SHUT] = math.max(l[$SHUT], shut_until(l))
    free(claim[2], l)
    put_lock(claim[2], l)
  end
end
local function sweep()
  if now_ms < swept_ms then return end
  call('ZREMRANGEBYLEX', INDEX, '[B', '(' .. ballot_member(wall_us - skew_us))
  local dead = call('ZRANGEBYSCORE', DUE, '-inf', now_ms, 'LIMIT', 0, SWEEP)
  for _, id in ipairs(dead) do
    local s = session_of(id)
    local ended_ms = s and (s[$ENDED] ~= '' and s[$ENDED_MS] or s[$DEADLINE]) or 0
    if ended_ms > now_ms then
      call('ZADD', DUE, ended_ms, id)
    elseif ended_ms + KEPT_MS > now_ms then
      if s[$COUNT] > 0 then purge(id); put_session(id, s) end
      call('ZADD', DUE, ended_ms + KEPT_MS, id)
    else
      if s and s[$COUNT] > 0 then purge(id) end
      call('HDEL', ROWS, 'S' .. id)
      sessions[id], changed['S' .. id] = false, nil
      call('ZREM', INDEX, 'S' .. id)
      call('ZREM', DUE, id)
    end
  end
  local idle = call('ZRANGEBYSCORE', IDLE, '-inf', now_ms - KEPT_MS, 'LIMIT', 0, SWEEP)
  for _, key in ipairs(idle) do
    local l = lock_of(key)
    if l[$SESSION] ~= '' or shut_until(l) > now_ms then
      call('ZADD', IDLE, now_ms, key)
    elseif l[$USED] + KEPT_MS > now_ms then
      call('ZADD', IDLE, l[$USED], key)
    else
      floor = math.max(floor, l[$HIGHEST])
      call('HSET', ROWS, 'floor', decimal(floor))
      call('HDEL', ROWS, 'L' .. key)
      call('ZREM', IDLE, key)
      locks[key], changed['L' .. key] = nil, nil
    end
  end
  if #dead < SWEEP and #idle < SWEEP then call('HSET', ROWS, 'swept', decimal(now_ms + 1000)) end
end

return (function()

-- ── requests ─────────────────────────────────────────────────────────────────────────

local function read_claims(id)
  local s, status, reason = live(id)
  if not s then return {status, reason, '', 0, {}} end
  local found = {}
  for _, claim in ipairs(claims_of(id)) do
    local l = lock_of(claim[2])
    if is_live(l) then
      local kind, name = string.match(claim[2], '^([^\31]*)\31(.*)$')
      found[#found + 1] =
        {claim[1], kind, name, l[$BALLOT], l[$ACTOR], l[$VALUE], now_ms - l[$SINCE]}
    end
  end
  return {'ok', '', s[$OWNER], math.max(0, s[$DEADLINE] - grace_ms - now_ms), found}
end

local function finish(answer)
  write()
  if ARGV[2] ~= '' then return {answer, wakes} end
  return answer
end

local function open()
  local id, ttl, owner, metadata, inbox, process = text(), number(), text(), text(), text(), text()
  local s, status, reason = live(id)
  if s then return 1 end
  if status == 'ended' then return {status, reason, 0} end
  create(id, ttl, owner, metadata, inbox, process)
  return 0
end
if request == 'open' then return finish(open()) end

local function take()
  local id, n, kind, name, ballot = text(), number(), text(), text(), number()
  local actor, value, max_hold_ms, delay_ms, window_ms = text(), maybe(), number(), number(), number()
  local since_us, flight = number(), number()
  if #ARGV > at then
    local opened = open()
    if type(opened) == 'table' then return {opened[1], opened[2], 0, wall_us} end
  end
  local s, status, reason = live(id)
  if not s then return {status, reason, 0, wall_us} end
  local key = key_of(kind, name)
  local l = lock_of(key)
  local highest = math.max(l[$HIGHEST], floor)
  local alive = is_live(l)
  if not (alive and l[$SESSION] == id and l[$N] == n and l[$BALLOT] == ballot) then
    local shut_ms = shut_until(l)
    local free_ms = 0
    if now_ms < silent_ms then
      status, free_ms = 'silent', silent_ms - now_ms
    elseif alive then
      status, free_ms = 'held', holder_of(l)[10] + grace_ms
    elseif shut_ms > now_ms then
      status, free_ms = 'closed', shut_ms - now_ms
    elseif ballot <= highest then
      status = 'low'
    elseif ballot > wall_us + skew_us then
      status = 'ahead'
    elseif ballot < wall_us - skew_us then
      status = 'behind'
    else
      -- The node accepts no ballot twice, not even for different locks.
      status = call('ZADD', INDEX, 0, ballot_member(ballot)) == 1 and 'ok' or 'low'
    end
    if status ~= 'ok' then
      local count, mine, changed = 0, id .. US .. actor, false
      for waiting, each in pairs(l[$WAITING]) do
        if each[4] <= now_ms then
          l[$WAITING][waiting], changed = nil, true
        else
          count = count + 1
        end
      end
      if since_us > 0 and (l[$WAITING][mine] or count < WAITING_MAX) then
        if not l[$WAITING][mine] then count = count + 1 end
        l[$WAITING][mine] = {since_us, n, s[$INBOX], now_ms + WAITING_MS}
        changed = true
      end
      if changed then put_lock(key, l) end
      return {status, '', highest, wall_us, count, free_ms, alive and holder_of(l) or false}
    end
    if l[$SESSION] ~= '' then
      local former, row = free(key, l)
      if row then put_session(former, row) end
    end
    hold(key, l, id, s, n, ballot, actor, value, max_hold_ms, delay_ms, window_ms, flight)
    l[$WAITING][id .. US .. actor] = nil
    put_lock(key, l)
    sweep()
  end
  renew(s)
  put_session(id, s)
  local contenders = contenders_of(l)
  if contenders == 0 then return l[$HIGHEST] end
  return {'ok', '', l[$HIGHEST], 0, contenders}
end
if request == 'take' then return finish(take()) end

local function give()
  local id, n, kind, name, ballot = text(), number(), text(), text(), number()
  local close_ms, undo = number(), number() == 1
  local key = key_of(kind, name)
  local l = lock_of(key)
  local s, status, reason = live(id)
  local own = l[$SESSION] == id and l[$N] == n and l[$BALLOT] == ballot
  local found = own and is_live(l)
  if own then
    if undo then undo_window(l) end
    local former, row = free(key, l)
    if row then put_session(former, row) end
    shut(l, close_ms)
  end
  if math.abs(ballot - wall_us) <= skew_us then
    l[$HIGHEST], l[$USED] = math.max(l[$HIGHEST], ballot), now_ms
  elseif not own then
    return status and {status, reason, 0} or 0
  end
  if own and not undo then wake_next(l) end
  put_lock(key, l)
  return status and {status, reason, 0} or found and 1 or 0
end
if request == 'give' then return finish(give()) end

local function keep()
  local id = text()
  local s, status, reason = live(id)
  if not s then return {status, reason, 0, 0} end
  renew(s)
  s[$RENEWALS] = s[$RENEWALS] + 1
  put_session(id, s)
  return {'ok', '', s[$COUNT], s[$SUM]}
end
if request == 'keep' then return finish(keep()) end

local function end_session()
  local id, reason, renewals = text(), text(), maybe()
  local s, status, why = live(id)
  if not s then return {status, why, 0} end
  if renewals and tonumber(renewals) ~= s[$RENEWALS] then return 0 end
  s[$ENDED], s[$ENDED_MS] = reason, now_ms
  for _, claim in ipairs(claims_of(id)) do
    local l = lock_of(claim[2])
    local delay_ms = reason == CLOSED and 0 or l[$DELAY]
    free(claim[2], l)
    shut(l, delay_ms)
    wake_next(l)
    put_lock(claim[2], l)
  end
  put_session(id, s)
  call('ZADD', DUE, now_ms, id)
  return 1
end
if request == 'end' then return finish(end_session()) end

local function sync()
  local id, ttl, owner, metadata, inbox, process = text(), number(), text(), text(), text(), text()
  local flight, count = number(), number()
  local s, status, reason = live(id)
  if not s then
    if status == 'ended' and reason ~= EXPIRED then return {status, reason, '', 0, {}} end
    if session_of(id) then purge(id) end
    s = create(id, ttl, owner, metadata, inbox, process)
  end
  renew(s)
  local wanted, believed, here = {}, {}, {}
  for i = 1, count do
    local claim = {number(), text(), text(), number(), text(), maybe(), number(), number() == 1}
    wanted[i] = claim
    believed[decimal(claim[1]) .. ' ' .. decimal(claim[4])] = true
  end
  for _, claim in ipairs(claims_of(id)) do
    local l = lock_of(claim[2])
    if l[$FLIGHT] < flight and not believed[decimal(claim[1]) .. ' ' .. decimal(l[$BALLOT])] then
      undo_window(l)
      free(claim[2], l)
      put_lock(claim[2], l)
    else
      here[claim[1]] = true
    end
  end
  for _, claim in ipairs(wanted) do
    local n, kind, name, ballot, actor, value, delay_ms, restore = unpack(claim)
    local key = key_of(kind, name)
    if restore and not here[n] then
      local l = lock_of(key)
      if now_ms >= silent_ms and not is_live(l) then
        if l[$SESSION] ~= '' then
          local former, row = free(key, l)
          if row and former ~= id then put_session(former, row) end
        end
        hold(key, l, id, s, n, ballot, actor, value, 0, delay_ms, 0, flight)
        put_lock(key, l)
      end
    end
  end
  put_session(id, s)
  return read_claims(id)
end
if request == 'sync' then return finish(sync()) end

local function describe()
  local id, n, kind, name, ballot = text(), number(), text(), text(), number()
  local what, said = text(), text()
  local s, status, reason = live(id)
  if not s then return {status, reason, 0} end
  local key = key_of(kind, name)
  local l = lock_of(key)
  local own = l[$SESSION] == id and l[$N] == n and l[$BALLOT] == ballot
  if own then
    l[what == 'actor' and $ACTOR or $VALUE] = said
    put_lock(key, l)
  end
  return own and 1 or 0
end
if request == 'describe' then return finish(describe()) end

if request == 'claims' then return finish(read_claims(text())) end

local function view(kind, name, l)
  return {kind, name, math.max(0, shut_until(l) - now_ms), contenders_of(l),
          is_live(l) and holder_of(l) or false}
end

local function locks_page()
  local kind, name, after, limit = text(), text(), text(), number()
  if limit == 0 then
    return {{view(kind, name, lock_of(key_of(kind, name)))}, 0}
  end
  local found, more = {}, 0
  local prefix = 'N' .. kind .. US
  local from = '[' .. prefix .. name
  if after ~= '' and after >= name then from = '(' .. prefix .. after end
  -- The end of the range: no name contains the byte 255.
  local last = '[' .. prefix .. name .. '\255'
  for _, member in ipairs(call('ZRANGEBYLEX', INDEX, from, last)) do
    local shown = string.sub(member, #prefix + 1)
    local l = lock_of(string.sub(member, 2))
    if is_live(l) then
      if #found == limit then
        more = 1
        break
      end
      found[#found + 1] = view(kind, shown, l)
    end
  end
  return {found, more}
end
if request == 'locks' then return finish(locks_page()) end

local function sessions_page()
  local after, limit = text(), number()
  local from = after == '' and '[S' or '(S' .. after
  local ids = call('ZRANGEBYLEX', INDEX, from, '(T', 'LIMIT', 0, limit + 1)
  local found = {}
  for i = 1, math.min(limit, #ids) do
    local id = string.sub(ids[i], 2)
    local s = session_of(id)
    local ended = why_ended(s)
    local left_ms = math.max(0, s[$DEADLINE] - grace_ms - now_ms)
    found[i] = {id, s[$OWNER], s[$METADATA], s[$PROCESS], s[$TTL], ended == '' and left_ms or 0,
                ended == '' and s[$COUNT] or 0, s[$RENEWALS], ended}
  end
  return {found, #ids > limit and 1 or 0}
end

return finish(sessions_page())
end)()
end)()
