-- What both scripts share. KEYS[1] is the index: what is known of, each with the instant (ms) until which it matters.
-- Anything else that stands in our keys (another type, no number, an instant beyond belief) counts as nothing.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local a = cjson.decode(ARGV[1])

local LONGEST = 3600 * 1000         -- no wait that anybody is told is longer
local TICKET = 120 * 1000           -- how long after its instant a place in a line is kept
local SLOW_START = 30 * 1000        -- how long after a hold has ended calls still come back one by one
local FIRST_RATE, DOUBLES = 5, 4000 -- calls a second right after a hold, and the ms in which that rate doubles
local FIRST_HOLD, LONGEST_HOLD = 1000, 60 * 1000 -- without a word of when to come back; it doubles
local FAULTS, WINDOW = 5, 300 * 1000             -- so many in a row, each within the window of the one before
local FIRST_OPEN, LONGEST_OPEN = 10 * 1000, 300 * 1000
local PROBED_AGAIN = 10 * 1000      -- how long others wait, at most, before they ask what became of a probe

local PREFIX = string.sub(KEYS[1], 1, -string.len('index') - 1)

local function name(kind, scope) return PREFIX .. kind .. ':' .. scope end

local function number(text)
  local value = tonumber(text)
  if value == nil or value ~= value or value == math.huge or value == -math.huge then return nil end
  return value
end

-- A number of things that we counted ourselves.
local function count(text)
  local value = number(text)
  if value == nil or value < 0 or value > 1000000 then return 0 end
  return math.floor(value)
end

-- A reading command; a key of another type is removed.
local function read(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) == 'table' and found.err then
    redis.call('DEL', key)
    return nil
  end
  return found
end

local function fields(kind, scope, ...)
  local found = {}
  for n, value in ipairs(read('HMGET', name(kind, scope), ...) or {}) do found[n] = value or nil end
  return found
end

local function instant(text)
  local at = number(text)
  if at == nil or at > now + 2 * LONGEST then return nil end
  return at
end

local function known(kind, scope, ends)
  read('ZCARD', KEYS[1])
  redis.call('ZADD', KEYS[1], ends, kind .. ':' .. scope)
  redis.call('PEXPIRE', KEYS[1], 2 * LONGEST)
end

local function forgotten(kind, scope)
  redis.call('DEL', name(kind, scope))
  read('ZCARD', KEYS[1])
  redis.call('ZREM', KEYS[1], kind .. ':' .. scope)
end

local function expires(kind, scope, milliseconds)
  redis.call('PEXPIRE', name(kind, scope), math.ceil(milliseconds))
end

-- When the caller of this place may come, in ms after the first: few at the beginning, ever more as all goes well.
local function spread(place)
  local grown = 1 + place * math.log(2) / (FIRST_RATE * DOUBLES / 1000)
  return DOUBLES * math.log(grown) / math.log(2)
end

-- The turn's place in a line, as an instant; nil where it has none (any more).
local function ticket(scope)
  local due = instant(read('ZSCORE', name('line', scope), a.turn))
  if due and due >= now - TICKET then return due end
  return nil
end

local function stand(scope, due)
  local line = name('line', scope)
  read('ZCARD', line)
  redis.call('ZREMRANGEBYSCORE', line, '-inf', now - TICKET)
  redis.call('ZADD', line, math.ceil(due), a.turn)
  expires('line', scope, due - now + TICKET)
end

local function leave(scope)
  return (read('ZREM', name('line', scope), a.turn) or 0) > 0
end

-- ms until this turn may pass a hold; 0 when it may now.
local function hold_left(scope)
  local found = fields('hold', scope, 'until', 'next')
  local ends = instant(found[1])
  if ends == nil then return 0 end
  if ends > now then return ends - now end
  local due = ticket(scope) or ends + spread(count(found[2]))
  return math.max(0, due - now)
end

-- Passes a hold: takes the turn's place, or the next one.
local function pass(scope)
  if instant(fields('hold', scope, 'until')[1]) and not leave(scope) then
    redis.call('HINCRBY', name('hold', scope), 'next', 1)
  end
end

-- A place in the line of a hold; ms until it comes.
local function queue(scope)
  local found = fields('hold', scope, 'until', 'next')
  local ends = instant(found[1]) or now
  local due = ticket(scope) -- a new hold has emptied the line, so it is of this one
  if due == nil or due <= now then
    local place = count(found[2])
    redis.call('HSET', name('hold', scope), 'next', string.format('%.0f', place + 1))
    due = math.max(ends + spread(place), now) + a.jitter * 100
    stand(scope, due)
    known('hold', scope, math.max(ends + SLOW_START, due + 1000))
    expires('hold', scope, math.max(ends + SLOW_START, due) - now + 5000)
  end
  return due - now
end

local function is_refused(scope)
  local left = scope ~= '' and read('PTTL', name('key', scope)) or 0
  return math.max(0, left)
end
