-- shard.lua  KEYS: rows, order, due, log  ARGV: …  →  (the state of one shard, for the parts behind it)
--
-- All state of a shard is in four keys that are declared in every call; nothing else is touched.
--   rows   hash   m: last token, log position, next due instant, schema, shards; while the log is kept
--                 also watchers, and until when it is
--                 s␟session, i␟session (what seldom changes), t␟session (its metadata)
--                 c␟session␟n, r␟kind␟name: a record each; of a plain lock the second has it all
--   order  zset   all scores 0, so it is in byte order: what has to be found in order
--   due    zset   by instant: session, session␟n (max_hold), ␟kind␟name (a closed resource)
--   log    list   the last entry is the one at the position in m; empty while nobody watches
-- A fifth key, which is none, is the clock of the comparison with the reference: "now_ms wall_us".
-- Numbers of more than 14 digits must not be concatenated (Lua prints %.14g): text() prints them.
-- Strings must not be compared with < (Lua asks the locale of the server): precedes() does it.

local ROWS, ORDER, DUE, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call, floor, max, min = redis.call, math.floor, math.max, math.min
local format, sub, find, byte = string.format, string.sub, string.find, string.byte
local pack, unpack_from = struct.pack, struct.unpack

local SCHEMA, SHARDS = 1, 1
local SEP = '\031'
local FAR_MS = 2 ^ 52
local LOG_KEPT_MS = 600000 -- after the last look: whoever comes back within it has missed nothing

-- token, position, due_ms, schema, shards; while the log is kept also watchers, log_until_ms
local COUNTERS, COUNTERS_BYTES = '<dddBB', 26

local function text(number)
  return format('%.0f', number)
end

-- ── clock and counters ──────────────────────────────────────────────────────────────

local now_ms, wall_us
if KEYS[5] then
  local at = find(KEYS[5], ' ', 1, true)
  now_ms = tonumber(sub(KEYS[5], 1, at - 1))
  wall_us = tonumber(sub(KEYS[5], at + 1))
else
  local time = call('TIME')
  now_ms = time[1] * 1000 + floor(time[2] / 1000)
  wall_us = time[1] * 1000000 + time[2]
end

local token, position, due_ms, watchers, log_until_ms = 0, 0, FAR_MS, 0, 0
local counters = call('HGET', ROWS, 'm')
if counters then
  local schema, shards
  token, position, due_ms, schema, shards = unpack_from(COUNTERS, counters)
  if schema ~= SCHEMA or shards ~= SHARDS then
    return redis.error_reply('LOCKFAST has schema ' .. schema .. ' in ' .. shards .. ' shards, not ' .. SCHEMA
      .. ' in ' .. SHARDS)
  end
  if #counters > COUNTERS_BYTES then
    watchers, log_until_ms = unpack_from('<dd', counters, COUNTERS_BYTES + 1)
  end
elseif call('EXISTS', ROWS, ORDER, DUE, LOG) > 0 then
  return redis.error_reply('LOCKFAST lost its counters in ' .. ROWS)
end

local function write_counters()
  local row = pack(COUNTERS, token, position, due_ms, SCHEMA, SHARDS)
  if log_until_ms > 0 then
    row = row .. pack('<dd', watchers, log_until_ms)
  end
  call('HSET', ROWS, 'm', row)
end
