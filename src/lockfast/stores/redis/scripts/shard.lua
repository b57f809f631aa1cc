-- shard.lua  KEYS: rows, order, due, log  ARGV: …  →  (clock and counters of the shard, for the parts behind it)
--
-- All state of a shard is in four keys that every call declares; no script touches any other key.
--   rows   hash   the truth. m: last token, log position, next due instant, schema, shards; while the log is
--                 enabled also the number of watchers and until when it is enabled
--                 s␟session, i␟session (what rarely changes), t␟session (its metadata)
--                 c␟session␟n, r␟kind␟name: one record each; a plain lock has only the second
--                 An empty value counts as a missing row.
--   order  zset   an index in byte order (all scores are 0): sessions, resources, lines, long lists of claims
--   due    zset   an index by instant: session, session␟n (max_hold), ␟kind␟name (a closed resource)
--   log    list   its last entry is the one at the position in m; empty while nobody watches
--
-- A script first reads and computes. It then writes in an order in which every prefix is harmless, because the server
-- may refuse any command (a missing permission) and rolls nothing back:
--   1. new members of order, 2. all rows in one HSET, 3. due, 4. deletions, log, wakes.
-- So rows are never half-written, and an index may have extra members but never lacks one: readers skip members that
-- do not match their claims. The server refuses ZADD before step 2 or not at all, because flush() tries it first.
--
-- In tests a fifth "key" carries the clock: "now_ms wall_us".
-- Numbers of more than 14 digits must not be concatenated (Lua prints %.14g): text() prints them.
-- Strings must not be compared with < (Lua uses the server's locale): precedes() does it.
-- Names behind a dollar sign are replaced by scripts.py when a script is assembled.

local ROWS, ORDER, DUE, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call, floor, max, min = redis.call, math.floor, math.max, math.min
local format, sub, find, byte = string.format, string.sub, string.find, string.byte
local pack, unpack_from = struct.pack, struct.unpack

local SCHEMA, SHARDS = $SCHEMA, $SHARDS
local SEP = '\031'
local FAR_MS = 2 ^ 52
local LOG_KEPT_MS = $LOG_KEPT_MS -- after the last read; a reader that returns within this time has missed nothing

-- token, position, due_ms, schema, shards; while the log is enabled also watchers, log_until_ms
local COUNTERS, COUNTERS_BYTES = '<dddBB', $COUNTERS_BYTES

local function text(number)
  return format('%.0f', number)
end

-- Aborts a command before anything is written.
local function damaged(what)
  error('LOCKFAST is damaged: ' .. what, 0)
end

-- ── clock and counters ──────────────────────────────────────────────────────────────

local now_ms, wall_us
$READ_CLOCK

local token, position, due_ms, watchers, log_until_ms = 0, 0, FAR_MS, 0, 0
local counters = call('HGET', ROWS, 'm')
if counters and #counters >= COUNTERS_BYTES then
  local schema, shards
  token, position, due_ms, schema, shards = unpack_from(COUNTERS, counters)
  if schema ~= SCHEMA then
    return redis.error_reply('LOCKFAST has schema ' .. schema .. ', not ' .. SCHEMA)
  elseif shards ~= SHARDS then
    local function layout(code)
      return 'shards=' .. code % $BY_FIRST_SEGMENT
        .. (code < $BY_FIRST_SEGMENT and '&shard_by=name' or '&shard_by=first-segment')
    end
    return redis.error_reply('LOCKFAST has ' .. layout(shards) .. ', not ' .. layout(SHARDS))
  end
  if #counters > COUNTERS_BYTES then
    watchers, log_until_ms = unpack_from('<dd', counters, COUNTERS_BYTES + 1)
  end
elseif not $REPAIRING and call('EXISTS', ROWS, ORDER, DUE, LOG) > 0 then
  damaged('the counters in ' .. ROWS .. ' are missing')
end

local function packed_counters()
  local row = pack(COUNTERS, token, position, due_ms, SCHEMA, SHARDS)
  if log_until_ms > 0 then
    row = row .. pack('<dd', watchers, log_until_ms)
  end
  return row
end
