-- Whether a call may be made now, and with which key. Returns what holds it ('' for nothing), the ms to wait, the number
-- of the key (from 0), and 1 where the call is a probe.

local function held(by, wait)
  return { by, math.ceil(math.min(math.max(wait, 1), LONGEST)), 0, 0 }
end

-- The endpoint: while it is thought to be down, nobody calls; then one does, and the others wait for what becomes of it.
local probes = {}
for _, scope in ipairs(a.breakers) do
  local found = fields('breaker', scope, 'until', 'probe_until', 'prober', 'next')
  local opens = instant(found[1])
  if opens ~= nil then
    if opens > now then
      local place = count(found[4])
      redis.call('HSET', name('breaker', scope), 'next', string.format('%.0f', place + 1))
      return held('endpoint_down', opens - now + spread(place) + a.jitter * 100)
    end
    local probing = instant(found[2])
    if probing ~= nil and probing > now and found[3] ~= a.turn then
      return held('endpoint_down', math.min(probing - now, PROBED_AGAIN) * (0.5 + 0.5 * a.jitter))
    end
    probes[#probes + 1] = scope
  end
end

-- The model, whatever the key.
if a.common ~= '' and hold_left(a.common) > 0 then return held('cooling_down', queue(a.common)) end

-- The key: the first one that is neither refused nor held. Refused ones are a last resort.
local chosen, waits, soonest, refused, least = nil, nil, nil, nil, nil
for n, lane in ipairs(a.lanes) do
  local wait, out = hold_left(lane.rate), is_refused(lane.key)
  if out > 0 then
    if wait == 0 and (least == nil or out < least) then refused, least = n, out end
  elseif wait == 0 then
    chosen = n
    break
  elseif soonest == nil or wait < soonest then
    waits, soonest = n, wait
  end
end
if chosen == nil and waits ~= nil then return held('cooling_down', queue(a.lanes[waits].rate)) end
if chosen == nil and not a.is_last and least ~= nil then return held('no_usable_key', least) end
chosen = chosen or refused or 1
if hold_left(a.lanes[chosen].rate) > 0 then return held('cooling_down', queue(a.lanes[chosen].rate)) end

-- The configured limits: what is not there yet is taken in advance, and the turn comes back when it is.
local function level(stored, at, per_minute)
  local most = math.max(per_minute / 10, 1)
  local left = number(stored)
  if left == nil or at == nil or at > now + 1000 or left < -120 * per_minute then return most, most end
  return math.min(most, left + (now - at) * per_minute / 60000), most
end

local function limits()
  if a.requests == 0 and a.tokens == 0 then return 0 end
  local line = 'limit:' .. a.bucket
  local due = ticket(line)
  if due ~= nil then
    if due > now then return due - now end
    leave(line)
    return 0
  end
  local found = fields('limit', a.bucket, 'requests', 'tokens', 'at')
  local at, wait, full = instant(found[3]), 0, 0
  local requests, tokens = found[1], found[2]
  if a.requests > 0 then
    local left, most = level(found[1], at, a.requests)
    wait = math.max(wait, (1 - left) * 60000 / a.requests)
    full = math.max(full, (most - left + 1) * 60000 / a.requests)
    requests = left - 1
  end
  if a.tokens > 0 then
    local left, most = level(found[2], at, a.tokens)
    wait = math.max(wait, (math.min(a.size, most) - left) * 60000 / a.tokens)
    full = math.max(full, (most - left + a.size) * 60000 / a.tokens)
    tokens = left - a.size
  end
  if wait > LONGEST then return LONGEST * (0.5 + 0.5 * a.jitter) end
  redis.call('HSET', name('limit', a.bucket), 'at', string.format('%.0f', now),
    'requests', string.format('%.3f', number(requests) or 0), 'tokens', string.format('%.3f', number(tokens) or 0))
  expires('limit', a.bucket, full + 60000)
  if wait > 0 then stand(line, now + wait) end
  return wait
end

local wait = limits()
if wait > 0 then return held('own_limits', wait + 1) end

if a.common ~= '' then pass(a.common) end
pass(a.lanes[chosen].rate)
for _, scope in ipairs(probes) do
  redis.call('HSET', name('breaker', scope), 'prober', a.turn, 'probe_until', string.format('%.0f', now + a.limit_ms))
  expires('breaker', scope, a.limit_ms + WINDOW)
  known('breaker', scope, now + a.limit_ms + WINDOW)
end
return { '', 0, chosen - 1, #probes > 0 and 1 or 0 }
