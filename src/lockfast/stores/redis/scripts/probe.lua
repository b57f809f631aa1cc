-- probe.lua  KEYS: rows, order, due, log  ARGV: channel  →  OK
--
-- Executes every command that the other scripts use, without effect. A missing permission is
-- detected here rather than in a script that has already written.

local ROWS, ORDER, DUE, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call = redis.call
call('TIME')
call('EXISTS', ROWS, ORDER, DUE, LOG)
call('HDEL', ROWS, '')
call('HMGET', ROWS, '', '')
local counters = call('HGET', ROWS, 'm')
if counters then
  call('HSET', ROWS, 'm', counters)
else
  call('HSET', ROWS, 'm', '')
  call('HDEL', ROWS, 'm')
end
call('ZADD', ORDER, 'XX', '0', '')
call('ZREM', ORDER, '')
call('ZRANGEBYLEX', ORDER, '[a', '(a')
call('ZREVRANGEBYLEX', ORDER, '(a', '[a')
call('ZADD', DUE, 'XX', '0', '')
call('ZREM', DUE, '')
call('ZRANGEBYSCORE', DUE, '0', '(0')
call('ZRANGE', DUE, '0', '0')
local length = call('LLEN', LOG)
call('LRANGE', LOG, '0', '0')
call('RPUSH', LOG, '')
call('LTRIM', LOG, length > 0 and 0 or 1, length > 0 and length - 1 or 0)
call('PUBLISH', ARGV[1], 'probe')
return 'OK'
