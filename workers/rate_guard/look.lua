-- What is known of, by name, and for how many ms it still matters.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = redis.pcall('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
if found.err then
  redis.call('DEL', KEYS[1])
  return {}
end
for n = 2, #found, 2 do found[n] = math.floor(math.min(found[n] - now, 7200000)) end
return found
