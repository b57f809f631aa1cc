-- open.lua  KEYS: the shard  ARGV: clock, session, ttl_ms, owner, metadata, inbox, process  →  done, ended or refused

return step(function()
  return open(2)
end)
