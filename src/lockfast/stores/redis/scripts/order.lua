-- order.lua  (behind shard.lua)  →  what has to be found in order, and when things are due

local AT_ONCE = 1000 -- arguments of one command: Lua unpacks 8,000 at the most

local added, removed, ordered = {}, {}, false

local function in_order(member)
  ordered = true
  if removed[member] then
    removed[member] = nil
  end
  added[member] = true
end

local function out_of_order(member)
  ordered = true
  if added[member] then
    added[member] = nil
  end
  removed[member] = true
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

local function write_order()
  if ordered then
    for_all('ZREM', ORDER, removed)
    for_all('ZADD', ORDER, added, '0')
    added, removed, ordered = {}, {}, false
  end
end

-- Members from `first` (included) to `last` (excluded), at most `limit` (0: all).
local function scan(first, last, limit)
  write_order()
  if limit == 0 then
    return call('ZRANGEBYLEX', ORDER, '[' .. first, '(' .. last)
  end
  return call('ZRANGEBYLEX', ORDER, '[' .. first, '(' .. last, 'LIMIT', 0, limit)
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

local function set_due(at_ms, member)
  call('ZADD', DUE, text(at_ms), member)
  if at_ms < due_ms then
    due_ms = at_ms
  end
end
