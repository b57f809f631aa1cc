-- order.lua  (behind shard.lua)  →  the indexes: what has to be found in order, and what is due when

local AT_ONCE = 1000 -- arguments of one command: Lua unpacks 8,000 at most

local added, removed, removals = {}, {}, 0
local due_changed, due_changes = {}, 0 -- member → instant, or false to remove it

local function in_order(member)
  if removed[member] then
    removed[member] = nil
    removals = removals - 1
  end
  added[member] = true
end

local function out_of_order(member)
  added[member] = nil
  if not removed[member] then
    removed[member] = true
    removals = removals + 1
  end
end

-- Calls a command for all members, a thousand at a time.
local function for_all(command, key, members, before)
  local arguments, count = {}, 0
  for member in pairs(members) do
    if before then
      count = count + 1
      arguments[count] = before
    end
    count = count + 1
    arguments[count] = member
    if count >= AT_ONCE then
      call(command, key, unpack(arguments))
      arguments, count = {}, 0
    end
  end
  if count > 0 then
    call(command, key, unpack(arguments))
  end
end

-- Before the rows are written: a member too many is skipped by whoever reads it.
local function write_added()
  if next(added) then
    for_all('ZADD', ORDER, added, '0')
    added = {}
  end
end

-- After the rows are written.
local function write_removed()
  if removals > 0 then
    for_all('ZREM', ORDER, removed)
    removed, removals = {}, 0
  end
end

-- Members from `first` (included) to `last` (excluded), at most `limit` (0: all).
local function scan(first, last, limit)
  write_added()
  local found
  if limit == 0 then
    found = call('ZRANGEBYLEX', ORDER, '[' .. first, '(' .. last)
  else
    found = call('ZRANGEBYLEX', ORDER, '[' .. first, '(' .. last, 'LIMIT', 0, limit + removals)
  end
  if removals == 0 then
    return found
  end
  local left = {}
  for _, member in ipairs(found) do
    if not removed[member] then
      left[#left + 1] = member
      if #left == limit then
        break
      end
    end
  end
  return left
end

-- Of two strings, whether the first sorts before the second, byte by byte.
local function precedes(one, other)
  local length = min(#one, #other)
  for i = 1, length do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local function change_due(member, at_ms)
  if due_changed[member] == nil then
    due_changes = due_changes + 1
  end
  due_changed[member] = at_ms
end

local function set_due(at_ms, member)
  change_due(member, at_ms)
  if at_ms < due_ms then
    due_ms = at_ms
  end
end

local function not_due(member)
  change_due(member, false)
end

-- The instant at which something is due next, with what this step changes.
local function first_due()
  local first_ms = FAR_MS
  for _, at_ms in pairs(due_changed) do
    if at_ms and at_ms < first_ms then
      first_ms = at_ms
    end
  end
  local stored = call('ZRANGE', DUE, 0, due_changes, 'WITHSCORES')
  for i = 1, #stored, 2 do
    if due_changed[stored[i]] == nil then
      return min(first_ms, tonumber(stored[i + 1]))
    end
  end
  return first_ms
end

local function write_due()
  if due_changes > 0 then
    local no_longer = {}
    for member, at_ms in pairs(due_changed) do
      if at_ms then
        call('ZADD', DUE, text(at_ms), member)
      else
        no_longer[member] = true
      end
    end
    for_all('ZREM', DUE, no_longer)
    due_changed, due_changes = {}, 0
  end
end
