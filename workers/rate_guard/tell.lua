-- What became of a call. Returns the ms until this turn's next one may be made (-1: nothing was said of that), and how many
-- of its other keys are usable now.

local function fault(scope)
  local found = fields('breaker', scope, 'until', 'faults', 'opened', 'prober')
  local opens = instant(found[1])
  local breaker = name('breaker', scope)
  local function open(times)
    local stays = math.min(FIRST_OPEN * 2 ^ times, LONGEST_OPEN)
    redis.call('HSET', breaker, 'until', string.format('%.0f', now + stays), 'opened', times + 1, 'next', 0)
    redis.call('HDEL', breaker, 'prober', 'probe_until')
    expires('breaker', scope, stays + WINDOW)
    known('breaker', scope, now + stays + WINDOW)
  end
  if opens ~= nil then
    -- One that had begun before says nothing new.
    if opens <= now and found[4] == a.turn then open(math.min(math.max(count(found[3]), 1), 10)) end
    return
  end
  local before = count(found[2])
  local faults = (before < FAULTS and before or 0) + 1
  redis.call('HSET', breaker, 'faults', string.format('%.0f', faults))
  expires('breaker', scope, WINDOW)
  known('breaker', scope, now + WINDOW)
  if faults >= FAULTS then open(0) end
end

-- Everybody waits. What a provider refuses while they do says nothing new, but for a later instant.
local function hold(scope, asked, counts)
  local found = fields('hold', scope, 'until', 'strikes')
  local ends, strikes = instant(found[1]), count(found[2])
  local waits = asked
  if ends ~= nil and ends > now then
    if now + waits <= ends then return end
  elseif counts then
    strikes = math.min(strikes + 1, 20)
    waits = math.max(waits, math.min(FIRST_HOLD * 2 ^ (strikes - 1), LONGEST_HOLD))
  end
  waits = math.min(waits, LONGEST)
  redis.call('HSET', name('hold', scope), 'until', string.format('%.0f', now + waits),
    'strikes', string.format('%.0f', strikes), 'next', 0)
  redis.call('DEL', name('line', scope)) -- the places in it were for an earlier instant
  expires('hold', scope, waits + SLOW_START + 5000)
  known('hold', scope, now + waits + SLOW_START)
end

for _, scope in ipairs(a.alive) do forgotten('breaker', scope) end
for _, scope in ipairs(a.calm) do
  local ends = instant(fields('hold', scope, 'until')[1])
  if ends ~= nil and ends <= now then redis.call('HSET', name('hold', scope), 'strikes', 0) end
end
for _, scope in ipairs(a.unprobed) do
  if fields('breaker', scope, 'prober')[1] == a.turn then
    redis.call('HDEL', name('breaker', scope), 'prober', 'probe_until')
  end
end
if a.fault ~= '' then fault(a.fault) end
if a.accepted ~= '' then forgotten('key', a.accepted) end
if a.refused ~= '' then
  redis.call('SET', name('key', a.refused), '1', 'PX', a.refused_ms)
  known('key', a.refused, now + a.refused_ms)
end
if a.bucket ~= '' and a.back ~= 0 and redis.call('EXISTS', name('limit', a.bucket)) == 1 then
  local left = number(fields('limit', a.bucket, 'tokens')[1])
  if left ~= nil then redis.call('HSET', name('limit', a.bucket), 'tokens', string.format('%.3f', left + a.back)) end
end
if a.hold ~= '' then hold(a.hold, a.hold_ms, a.counts) end

local all_held = a.common ~= '' and hold_left(a.common) > 0
local others = 0
for n, lane in ipairs(a.lanes) do
  if n ~= a.used and not all_held and is_refused(lane.key) == 0 and hold_left(lane.rate) == 0 then others = others + 1 end
end
if a.hold == '' or not a.counts or others > 0 then return { -1, others } end
return { math.ceil(math.min(queue(a.hold), LONGEST)), others }
