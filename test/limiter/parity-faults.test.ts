/**
 * Shows that the parity property can fail: each row plants one fault in one line of the Lua, and the same histories
 * must find it. A row whose line is not there any more fails too, so that the table keeps up with the scripts.
 */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { readFileSync } from 'node:fs';
import { eventKinds } from '../support/event-kinds.ts';
import { loadInto } from '../support/loaded-scripts.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { historyOf } from './parity-history.ts';
import { differences, Messages, prepare, type Prepared } from './parity-run.ts';

/** What goes wrong, the file, the line's part, and what stands there instead. */
const faults: readonly (readonly [what: string, file: string, right: string, wrong: string])[] = [
  [
    'a lane may have one call more than its cap',
    'lanes',
    'lane.inFlight < lane.maxInFlight',
    'lane.inFlight <= lane.maxInFlight',
  ],
  [
    'a sleeping lane stays in the running',
    'lanes',
    'local ready = lane.waiting > 0 and not asleepUntil(lane)',
    'local ready = lane.waiting > 0',
  ],
  [
    'a lane that was idle catches up on its share',
    'lanes',
    'if not lane.readyAs then lane.start = math.max(lane.start, bucket.virtual) end',
    '',
  ],
  [
    'a woken lane has no slot left',
    'lanes',
    'lane.asleep = { false, false, false, false }\n      if lane.slots then lane.slots = math.max(1, lane.slots) end',
    'lane.asleep = { false, false, false, false }',
  ],
  [
    'cancelled tickets keep counting',
    'lanes',
    'countWaiting(lane, ticket, -1)',
    'countWaiting(lane, ticket, 0)',
  ],
  [
    'returned grants save up a share',
    'settle',
    'giveLeaseUnitsBack(lease, now)',
    'giveLeaseUnitsBack(lease, now) local ticket = ticketOf(lease.ticket) lane.start = lane.start - serviceCost(ticket.costs) / lane.weight',
  ],
  [
    'a dropped call is not given back',
    'lessons',
    'if meter then giveUnitsBack(meter, mark[2], lease.grantedAt, now) end',
    'if meter then drain(meter, now) end',
  ],
  [
    'a throttled call shortens a longer closing',
    'lessons',
    'bucket.closedUntil = math.max(bucket.closedUntil or now, now + closeMs)',
    'bucket.closedUntil = now + closeMs',
  ],
  ['a meter that was empty drains at once', 'meter', 'if cost > 0 and meter.limit then', 'if false then'],
  ['a pinned limit rises', 'meter-quota', 'if not stated or bucket.learn then', 'if true then'],
  [
    'a raised limit forgets what responses told',
    'meter-quota',
    'if not before or not limit or limit <= before then return end',
    'if true then return end',
  ],
  [
    'a window whose log ends goes on with the level of before the log',
    'lessons',
    'meter.level, meter.at = math.min(windowLog.loggedUnits(meter, now), meter.limit or math.huge), math.max(meter.at, now)',
    '',
  ],
  [
    'a response that raises a limit forgets its own call',
    'meter-quota',
    'local counted = peak.level + onTheWay(meter) + answered',
    'local counted = peak.level + onTheWay(meter)',
  ],
  [
    'a lowered limit forgets what it cuts off',
    'meter-quota',
    'if meter.limit and not meter.reported then rememberLevel(meter, now) end',
    '',
  ],
  [
    'what the operator leaves to others fills a pinned limit',
    'meter-quota',
    'return math.max(0, meter.reported[1] - meter.limit)',
    'return 0',
  ],
  [
    'a response empties a meter that is held slower',
    'meter-quota',
    'return limit * reportedMs < reported[1] * meter.windowMs',
    'return false',
  ],
  [
    'a limit that is no longer stated stays in force',
    'lessons',
    'local one = stated[name] or false',
    'local one = stated[name] or meter.stated and { limit = meter.stated[1], windowMs = meter.stated[2] }',
  ],
  [
    'the log of a window forgets what was given back too late',
    'window-log',
    'if slots[i][1] <= grantedAt then',
    'if slots[i][1] < grantedAt then',
  ],
  [
    'a window loses what it counted when it is called otherwise',
    'lessons',
    'windowLog.followWindows(setting.meters, now)',
    '',
  ],
  [
    'a call gives nothing back to a window that is called otherwise now',
    'bucket-state',
    'if markNames.of(one) == name then return one end',
    '',
  ],
  [
    'a window that is added has counted nothing',
    'described-windows',
    'meter.windowMs, meter.level, meter.at, meter.log = windowMs, level, at, log and { log[1], slots }',
    '',
  ],
  [
    'a window of the clock begins when its first call does',
    'window-log',
    'if last and isFixed then',
    'if false then',
  ],
  [
    'a window of the clock ends when ours does, whatever responses state',
    'window-log',
    'if slots[i][1] <= sentAt then',
    'if false then',
  ],
  [
    'no call that was granted earlier arrives late',
    'pump',
    "spacing == 'calm' and between('g', now - calmLatenessMs, now) or {}",
    '{}',
  ],
  [
    'calls that may come late do not count',
    'meter-bounds',
    'toCome = toCome + inTransit[at][2]',
    'toCome = toCome',
  ],
  [
    'a response forgets the calls behind it',
    'meter-bounds',
    'local later = meter.granted - mark[2]',
    'local later = 0',
  ],
  [
    'a crowd counts as calm',
    'meter-bounds',
    "if not isInOrder or seen.spacing ~= 'calm' then",
    'if not isInOrder then',
  ],
  [
    'a call among a crowd counts as spaced',
    'pump',
    "not quiet and 'crowded' or isLong and 'calm' or 'quiet'",
    "isLong and 'calm' or 'quiet'",
  ],
  ['a refused call counts as taken', 'meter-bounds', 'later - (meter.returned - mark[3])', 'later'],
  ['a closed bucket is granted from', 'pump', 'if closedMs(now) > 0 then', 'if false then'],
  [
    'a full lane lets a call in where nobody waits',
    'pump',
    'if asked.maxInFlight and (lane and lane.inFlight or 0) >= asked.maxInFlight then return false end',
    '',
  ],
  [
    'a lease that ends before all others is not looked for in time',
    'sorted',
    'if not from or at < from then bucket.due[section] = at end',
    'if not from then bucket.due[section] = at end',
  ],
  [
    'the first class that has no room blocks nobody',
    'pump',
    'nextAt = soonest(nextAt, now + inMs)',
    'nextAt = now + inMs',
  ],
  ['dead replicas are granted', 'pump', 'heard and tonumber(heard) + replicaLifeMs >= now', 'heard'],
  ['leases end one pump late', 'sorted', 'return at and at <= now', 'return at and at < now'],
  [
    'an abandoned ticket comes back',
    'pump',
    "if lease.stage ~= 'abandoned' then discard('t', lease.ticket) end",
    "discard('t', lease.ticket)",
  ],
  [
    'probes double without end',
    'first-calls',
    'math.min(maxDoublings, math.floor(',
    'math.min(maxDoublings, math.ceil(',
  ],
  ['a crowd goes without a pilot', 'first-calls', 'return bucket.lastGrantAt + pilotMs', 'return now'],
  [
    'a response to a pilot is not heard',
    'first-calls',
    'if lease.grantedAt == bucket.lastGrantAt then bucket.pilotAfter',
    'if false then bucket.pilotAfter',
  ],
  [
    'a call that did not go was the pilot',
    'first-calls',
    'bucket.lastGrantAt = bucket.pilotAfter end',
    'bucket.lastGrantAt = bucket.lastGrantAt end',
  ],
  ['a pump has no bound', 'pump', 'sweepLeases(maxPerPump, now)', 'sweepLeases(640, now)'],
  [
    'ties go to the last name',
    'pump',
    'if left ~= right then return left < right end',
    'if left ~= right then return left > right end',
  ],
  ['other lanes are counted by number, not by weight', 'forecast-others', '/ position.weight', '/ 1'],
  [
    'of another lane as many calls go first as its share, though fewer wait',
    'forecast-others',
    'return math.min(calls, math.max(0, before))',
    'return math.max(0, before)',
  ],
  [
    'a lane that comes later in the order of names goes first among equals',
    'forecast-others',
    'precedes(lane.key, key)',
    'precedes(key, lane.key)',
  ],
  ['sleeping lanes count in sum', 'forecast-others', 'read(firstAsleep(maxLanes - #ready))', 'read({})'],
  [
    'a sleeping lane counts before its share is over',
    'forecast-others',
    'if not lane.readyAs then return math.min(calls, math.floor(shares + rounding)) end',
    '',
  ],
  ['other lanes are read to the last', 'forecast-others', 'firstReady(maxLanes)', 'firstReady(2 * maxLanes)'],
  [
    'lanes that were read one by one count in sum again',
    'forecast-others',
    'rest.calls, rest.weight = rest.calls - calls, rest.weight - lane.weight',
    'rest.calls = rest.calls - calls',
  ],
  [
    'another lane counts as it was before the batch',
    'forecast-others',
    'current[fields[i]] or { cmsgpack.unpack(packed) }',
    'packed and { cmsgpack.unpack(packed) } or current[fields[i]]',
  ],
  [
    'a call that would be refused is judged by the sum of the other lanes',
    'forecast-at',
    'if waitMs <= withinMs then return waitMs, heldBy end',
    'do return waitMs, heldBy end',
  ],
  [
    'a call counts one, whatever it costs',
    'pump',
    'lane.start + serviceCost(costs) / lane.weight',
    'lane.start + 1 / lane.weight',
  ],
  ['a daily meter counts as a rate', 'waiting-costs', " and string.sub(name, -4) ~= '_day'", ''],
  [
    'a cost above the limit is counted in full',
    'waiting-costs',
    'math.min(units, meter.limit) * meter.windowMs',
    'units * meter.windowMs',
  ],
  [
    'lanes that are next are not counted ahead',
    'forecast-others',
    "before = before + redis.call('ZLEXCOUNT'",
    "before = 0 * redis.call('ZLEXCOUNT'",
  ],
  [
    'calls of other lanes are counted as large as the own ones',
    'forecast-others',
    'share / meanServiceCost(rest.costs, rest.calls)',
    'share / meanServiceCost(lane and lane.waiting > 0 and lane.waitingCosts or rest.costs, lane and lane.waiting > 0 and lane.waiting or rest.calls)',
  ],
  [
    'a refused call is entered',
    'admit',
    `return '["queue_full",' .. text(waitMs) .. ',"queue",' .. text(ahead) .. ']'`,
    'return nil',
  ],
  [
    'a position is the time of the script, not of the arrival',
    'admit',
    'math.max(asked.arrivedAt or now, now - maxArrivalAgoMs)',
    'now',
  ],
  [
    'a lease is settled twice',
    'settle',
    "local held = lease and lease.stage ~= 'abandoned'",
    'local held = lease',
  ],
  ['a lost grant is never sent again', 'pump', "put('u:' .. lease.replica .. ':' .. lease.token)", ''],
  [
    'other replicas do not hear that the bucket closed',
    'settle',
    'event.closeMs > 0 then closes = true end',
    'event.closeMs < 0 then closes = true end',
  ],
  [
    'a bucket that learned nothing lives as long as one that did',
    'save',
    'bucket.opened and blankMemoryMs or unansweredMemoryMs',
    'bucketMemoryMs',
  ],
  ['a key lives for ever', 'save', "redis.call('PEXPIRE', recordsKey, lifeMs)", ''],
  [
    'a requeued ticket costs its first estimate',
    'settle',
    'ticket.costs = cappedCosts(knownCosts(ticket.costs, ticket.document))',
    '',
  ],
  [
    'every returned grant limits its lane to one call',
    'settle',
    'if hadSlot then slotIsBack(lane, now) else lane.slots = 1 end',
    'lane.slots = 1',
  ],
  [
    'a slot that came back does not wake its lane',
    'lanes',
    `lane.slotBackAt = now
  if lane.slots then lane.slots = math.max(1, lane.slots) end
  wake(lane, { 'ceiling_minute', 'ceiling_day' })`,
    'lane.slotBackAt = now',
  ],
  [
    'a refusal from before a slot came back puts its lane to sleep',
    'settle',
    'lease.grantedAt < lane.slotBackAt',
    'false',
  ],
  [
    'a dropped call keeps its lane asleep',
    'settle',
    "discard('t', lease.ticket)\n    slotIsBack(lane, now)",
    "discard('t', lease.ticket)",
  ],
  [
    'room used by a call of unknown fate looks free',
    'settle',
    'table.insert(lane.abandoned, lease.expiresAt)',
    '',
  ],
  ['room freed by a call looks used', 'pump', 'if at == expiresAt then', 'if at ~= expiresAt then'],
  [
    'more is asked for than there is',
    'waiting-costs',
    'math.min(cost[2], meter.limit) or cost[2]',
    'cost[2] or 0',
  ],
  ['no call is ever late', 'forecast-at', 'now - lane.grantedAt - lane.serviceMs', '0'],
  ['a changed ceiling wakes no lane', 'lanes', "wake(lane, { 'ceiling_minute', 'ceiling_day' })", ''],
  [
    'a refusal under other limits holds a lane',
    'settle',
    'not settlement.ceilingTag or settlement.ceilingTag == lane.ceilingTag',
    'true',
  ],
  [
    'a changed ceiling ends a back-off',
    'lanes',
    "wake(lane, { 'ceiling_minute', 'ceiling_day' })",
    "wake(lane, { 'ceiling_minute', 'ceiling_day', 'backoff' })",
  ],
  [
    'a lane wakes with the first of its reasons',
    'lanes',
    'if till and (not latest or till > latest) then',
    'if till and (not latest or till < latest) then',
  ],
  ['a reload changes no lane', 'reconfigure', 'if lane then applyLaneSetting(lane, change) end', ''],
  [
    'no call waits for the cost of its document',
    'documents',
    "if not known or known.kind ~= 'probing' or known.until <= now then return false end",
    'if true then return false end',
  ],
  [
    'a call that was not sent counts as a cost probe',
    'settle',
    'then dropProbe(lease)',
    'then endProbe(lease, now)',
  ],
  [
    'waiting calls count with their estimate',
    'documents',
    'ticket.costs = cappedCosts(knownCosts(ticket.costs, document))',
    '',
  ],
  [
    'a learned cost wakes no lane',
    'documents',
    "if known and known.kind == 'probing' then wakeWaiting(known) end",
    '',
  ],
  [
    'a refusal names the wrong reason',
    'forecast-at',
    "'ceiling_minute', 'ceiling_day', 'closed'",
    "'ceiling_minute', 'closed', 'closed'",
  ],
  [
    'a lane without a call in flight has one that is late',
    'forecast-at',
    'if lane.inFlight == abandoned or not lane.grantedAt then',
    'if not lane.grantedAt then',
  ],
  [
    'a wait that was guessed shows others',
    'lessons',
    'asked <= reserved and lesson.isTimed and',
    'asked <= reserved and',
  ],
  ['a refused call asked for what was reserved', 'lessons', 'lesson.refusedUnits or reserved', 'reserved'],
  ['nothing is kept free for other users of the quota', 'meter', 'limit - keptFree(meter, waiting)', 'limit'],
  [
    'no refusal is attributed to other users of the quota',
    'meter-learning',
    'noteContest(meter, cost, now)',
    '',
  ],
  ['the use by others is not learned', 'meter-learning', 'noteOthers(meter, level - before, sinceMs)', ''],
  [
    'a rise that is merely likely counts as use by others without a contest',
    'meter-learning',
    'level > before and not isInOrder and not meter.contest',
    'false',
  ],
  [
    'a closed bucket counts as use by others',
    'meter-learning',
    'isShut(meter, cost, seen.closedMs)',
    'false',
  ],
  ['older responses forget a fuller bucket', 'meter-bounds', 'seen.sentAt <= peak.headAt', 'false'],
  [
    'a refusal is forgotten by the next response',
    'meter-learning',
    'meter.peak = { meter.level + unusedUnits(meter), meter.at, now }',
    '',
  ],
  ['calls that leave late are calm', 'lessons', 'noteLateness(lease, math.min(lesson.sentAt, now))', ''],
  [
    'calls whose responses stated nothing count as arrived',
    'lessons',
    'if meter then markUnreported(meter, mark[2], at) end',
    '',
  ],
  ['time steps back', 'bucket-state', 'math.max(now, bucket.seen)', 'now'],
  // One at least per kind of event, and what only a batch shows.
  ['a lease named in a lesson is reported again', 'learn', 'noteNamed(lease)', ''],
  ['slots are not counted', 'charge', 'lane.slots = event.slots', 'lane.slots = false'],
  ['a cancelled ticket is kept', 'cancel', "discard('t', ticket.id)", ''],
  ['a forecast counts the call itself', 'forecast', 'text(ahead)', 'text(ahead + 1)'],
  ['a tick renews nothing', 'tick', 'renewLeases(event.leases, now)', ''],
  ['a slot that came back wakes nobody', 'wake', 'slotIsBack(lane, now)', 'local _ = lane'],
  ['a reload changes no limit', 'reconfigure', 'applySettingsOnce(event.setting, now)', ''],
  [
    'an operator opens what was closed after the time named',
    'open',
    'if not bucket.closedAt or bucket.closedAt <= (event.before or now) then',
    'if true then',
  ],
  ['a bucket that was opened drains from its former end on', 'open', 'meter.at = now', ''],
  ['the units that a call spent are ignored', 'settle', 'if settlement.spent then', 'if false then'],
  [
    'units that have drained are given back',
    'meter',
    'if back > 0 and (meter.emptyAt or grantedAt) > grantedAt then return end',
    '',
  ],
  ['dear calls fill a meter without bound', 'meter', 'math.min(level - back, highest)', 'level - back'],
  [
    'a refusal does not raise the cost of its call',
    'settle',
    'if settlement.closeMs > 0 and settlement.lesson then raiseCost(lease, settlement.lesson) end',
    '',
  ],
  ['a batch goes on for as long as it grants', 'apply', 'if #granted >= maxPerPump then break end', ''],
  [
    'a setting holds for one event of a batch',
    'batch',
    'event.setting = setting',
    'setting = event.setting or setting event.setting = event.setting or { meters = {}, learn = true, probe = 0 }',
  ],
  ['a tick in a batch sees lanes as they were before it', 'tick', 'refreshIdleness()', ''],
  ['a grant in a reply is reported twice', 'admit', 'reportedByReply[lease.token] = true', ''],
  [
    'waiting calls of the replica are counted as before the batch',
    'tick',
    ' + (waitingChange[replica] or 0)',
    '',
  ],
  ['calls of a dead replica are not looked for', 'tick', 'if waitingOf(first[1]) > 0 then', 'if false then'],
  ['calls of a dead replica stay in line', 'tick', 'dequeue(laneOf(ticket.lane), ticket)', ''],
];

test.each(eventKinds)('a fault is planted in what the event %s does', (kind) => {
  expect(faults.filter(([, file]) => file === kind)).not.toEqual([]);
});

const maxHistories = 1_000;
const perBatch = 20;
/** Every row begins with the same histories: what the policy says of these is worked out once. */
const maxKept = 60;
const kept = new Map<number, Prepared>();

function preparedOf(seed: number): Prepared {
  const known = kept.get(seed);
  if (known !== undefined) return known;
  const prepared = prepare(seed, historyOf(seed));
  if (kept.size < maxKept) kept.set(seed, prepared);
  return prepared;
}

/** Batches of seeds in the order in which they are tried: few at first, as most faults are in every other history. */
function* seedBatches(): Generator<readonly number[]> {
  yield [1, 2, 3, 4, 5];
  for (let first = 6; first <= maxHistories; first += perBatch)
    yield Array.from({ length: perBatch }, (_, n) => first + n);
}

let server: RedisServer;
let redis: Redis;
let subscriber: Redis;
let messages: Messages;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  subscriber = new Redis(server.port, '127.0.0.1');
  messages = await Messages.on(subscriber);
});

afterAll(async () => {
  subscriber.disconnect();
  redis.disconnect();
  await server.stop();
});

test.each(faults)(
  'the parity histories find this fault in the Lua: %s',
  async (_what, file, right, wrong) => {
    const patched = (name: string): string | null => {
      const source = readFileSync(
        new URL(`../../src/limiter/redis/lua/${name}.lua`, import.meta.url),
        'utf8',
      );
      if (name !== file) return source;
      expect(source.split(right).length - 1).toBeGreaterThan(0);
      return source.replaceAll(right, wrong);
    };
    const bench = { redis, messages, loaded: await loadInto(redis, 'library', patched) };
    let found: string | null = null;
    for (const seeds of seedBatches()) {
      const results = await differences(bench, seeds.map(preparedOf));
      found = results.find((result) => result !== null) ?? null;
      if (found !== null) break;
    }
    expect(found).not.toBeNull();
  },
);
