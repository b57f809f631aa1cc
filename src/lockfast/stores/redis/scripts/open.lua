-- open.lua  KEYS: the shard  ARGV: session, ttl_ms, owner, metadata, inbox, process  →  done, ended or refused

return step(function()
  return open(1)
end)
