-- close.lua  KEYS: the shard  ARGV: session  →  done

write_in_any_case()

return step(function()
  return finish_by_command(ARGV[1], 'it was closed', 'released')
end)
