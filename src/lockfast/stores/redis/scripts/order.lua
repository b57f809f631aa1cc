-- order.lua  (behind shard.lua)  →  the indexes: one in key order, one by due time

local AT_ONCE = 1000 -- arguments of one command: Lua unpacks 8,000 at most

local added, removed, removals = {}, {}, 0
local gone_up_to = {} -- start of a range → the last of the removed members at its head
local due_changed, due_changes = {}, 0 -- member → instant, or false to remove it

local function in_order(member)
  if removed[member] then
    removed[member] = nil
    removals = removals - 1
  end
  gone_up_to = {}
  added[member] = true
end

local function out_of_order(member)
  added[member] = nil
  if not removed[member] then
    removed[member] = true
    removals = removals + 1
  end
end

-- Executes a command for all members, a thousand at a time.
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

-- Call before the rows are written: readers skip a member without a row.
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

-- Members from `first` (included) to `last` (excluded), at most `limit` (0: all). The index still contains the members
-- that this step removes; `gone_up_to` lets the next scan of a range begin behind those at its head. Without it, a
-- step that removes the claims of a line one by one would read the line from its beginning each time.
local function scan(first, last, limit)
  write_added()
  local from, to = gone_up_to[first] and '(' .. gone_up_to[first] or '[' .. first, '(' .. last
  local left, read, size = {}, 0, limit
  while true do
    local found
    if limit == 0 then
      found = call('ZRANGEBYLEX', ORDER, from, to)
    else
      found = call('ZRANGEBYLEX', ORDER, from, to, 'LIMIT', read, size)
    end
    if removals == 0 then
      return found
    end
    for _, member in ipairs(found) do
      if not removed[member] then
        left[#left + 1] = member
        if #left == limit then
          return left
        end
      elseif #left == 0 then
        gone_up_to[first] = member
      end
    end
    if limit == 0 or #found < size then
      return left
    end
    read, size = read + size, 2 * size
  end
end

-- Up to `limit` views of the members of a range, and 1 if there are more. `view` returns nil for a member that is not in
-- use: a step that the server aborted left it in the index.
local function page(first, last, limit, view)
  local views = {}
  while true do
    local size = limit + 1 - #views
    local found = scan(first, last, size)
    for _, member in ipairs(found) do
      local seen = view(member)
      if seen and #views == limit then
        return views, 1
      end
      views[#views + 1] = seen
    end
    if #found < size then
      return views, 0
    end
    first = found[#found] .. '\0'
  end
end

-- Returns true if the first string sorts before the second, byte by byte.
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

-- Returns the next due time, including the changes of this step.
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
