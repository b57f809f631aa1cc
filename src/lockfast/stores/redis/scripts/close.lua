-- close.lua  KEYS: the shard  ARGV: session  →  done

write_in_any_case()

return step(function()
  return end_by_command(ARGV[1], $CLOSED, 'released')
end)
