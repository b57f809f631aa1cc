-- shard.lua  KEYS: rows, order, due, log  ARGV: …  →  (clock and counters of the shard, for the parts behind it)
--
-- All state of a shard is in four keys that every call declares; no script touches any other key.
--   rows   hash   the truth. m: last token, log position, next due instant, schema, shards; while the log is
--                 kept also the number of watchers and until when it is kept
--                 s␟session, i␟session (what seldom changes), t␟session (its metadata)
--                 c␟session␟n, r␟kind␟name: one record each; of a plain lock, the second has it all
--                 An empty value counts as a missing row.
--   order  zset   an index in byte order (all scores are 0): sessions, resources, lines, long lists of claims
--   due    zset   an index by instant: session, session␟n (max_hold), ␟kind␟name (a closed resource)
--   log    list   its last entry is the one at the position in m; empty while nobody watches
--
-- A script reads and computes first; then it writes in an order that makes every half of it harmless, because the
-- server may refuse any command (for want of a right) and undoes nothing:
--   1. new members of order, 2. all rows in one HSET, 3. due, 4. deletions, log, wakes.
-- So rows are never half-written, and an index may name too much but never too little: whoever reads a line skips
-- members that their claims do not confirm. The server refuses ZADD before step 2 or not at all, because flush()
-- tries it first.
--
-- A fifth key, which is none, is the clock in tests: "now_ms wall_us".
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
local LOG_KEPT_MS = $LOG_KEPT_MS -- after the last read: whoever comes back within it has missed nothing

-- token, position, due_ms, schema, shards; while the log is kept also watchers, log_until_ms
local COUNTERS, COUNTERS_BYTES = '<dddBB', $COUNTERS_BYTES

local function text(number)
  return format('%.0f', number)
end

-- Refuses a command before anything is written.
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
  if schema ~= SCHEMA or shards ~= SHARDS then
    return redis.error_reply('LOCKFAST has schema ' .. schema .. ' in ' .. shards .. ' shards, not ' .. SCHEMA
      .. ' in ' .. SHARDS)
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
