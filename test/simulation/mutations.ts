/**
 * Which line keeps which invariant: one-line changes of the product, each of which the histories or the unit tests must
 * find wrong. `find` must occur in the file as it stands; `npm run verify:mutations` says so when a line was rewritten.
 */
export interface Mutation {
  /** Number of the invariant that the line keeps. */
  readonly keeps: string;
  readonly what: string;
  readonly file: string;
  readonly find: string;
  readonly put: string;
  /** It is looked for in the histories of upstreams that are described by their windows. */
  readonly isDescribed?: true;
  /** Why nothing finds it, where that is right: the reason is printed in the table. */
  readonly survives?: string;
}

const firstCalls = 'src/limiter/policy/first-calls.policy.ts';
const pump = 'src/limiter/policy/pump.policy.ts';
const granting = 'src/limiter/policy/grant.policy.ts';
const lanes = 'src/limiter/policy/lanes.policy.ts';
const meter = 'src/limiter/policy/meter.policy.ts';
const bounds = 'src/limiter/policy/meter-bounds.policy.ts';
const lessons = 'src/limiter/policy/lessons.policy.ts';
const entering = 'src/limiter/policy/admit.policy.ts';
const settling = 'src/limiter/policy/settle.policy.ts';
const ceiling = 'src/limiter/policy/ceiling.policy.ts';
const dueTick = 'src/limiter/shared/ticks.ts';
const shard = 'src/limiter/shared/shard.ts';
const ceilings = 'src/limiter/embedded/ceilings.ts';
const edge = 'src/admission/ceiling-edge.ts';
const gate = 'src/admission/ceiling-gate.ts';
const registry = 'src/admission/wait-registry.ts';
const queued = 'src/admission/queued-call.ts';
const slotsAhead = 'src/admission/slots-ahead.ts';
const slotsBack = 'src/admission/slots-back.ts';
const lease = 'src/admission/lease.ts';
const standstill = 'src/limiter/policy/standstill.policy.ts';
const windowLearning = 'src/limiter/policy/window-learning.policy.ts';
const windowLog = 'src/limiter/policy/window-log.policy.ts';
const quota = 'src/limiter/policy/meter-quota.policy.ts';
const revise = 'src/admission/reconfigure.ts';
const ceilingScan = 'src/admission/ceiling-scan.ts';

export const row = (keeps: string, what: string, file: string, find: string, put: string): Mutation => ({
  keeps,
  what,
  file,
  find,
  put,
});

/** Shared by both tables: each of them must be found in histories of one process and of several replicas. */
export const statedWaits: readonly Mutation[] = [
  row(
    '13',
    'a lane that was never served waits for as long as the clock shows',
    standstill,
    'if (served === 0 || lane.grantedAt === null) return rounds * serviceMs;',
    '',
  ),
  row(
    '13',
    'a refusal raises the level by the guessed cost',
    lessons,
    "if (throttle.meter === 'cost') return requestedCost ?? null;",
    "if (throttle.meter === 'cost') return null;",
  ),
  row(
    '13',
    'every window is taken for a minute',
    windowLearning,
    'usualWindowsMs.find((windowMs) => windowMs >= minWindowMs)',
    'usualWindowsMs.find((windowMs) => windowMs >= Math.max(minWindowMs, 60_000))',
  ),
];

/** Shared by both tables, too: each must be found in histories of upstreams that are described. */
export const describedReloads: readonly Mutation[] = [
  row(
    '2',
    'a described window forgets its calls when it is called otherwise',
    lessons,
    '  followWindows(bucket, setting.meters, now);\n',
    '',
  ),
  row(
    '14',
    'a described window keeps its length',
    quota,
    '  if (windowMs !== meter.windowMs) meter.log = countedAs(meter, { windowMs }, now);\n',
    '',
  ),
  row(
    '13',
    'a described window that is lowered takes a window for each limit',
    windowLog,
    'const rounds = Math.ceil(units / limit - unitRounding) - 1;',
    'const rounds = Math.max(0, Math.ceil((loggedUnits(log, now) + units - limit) / limit) - 1);',
  ),
  row(
    '14',
    'another cap of calls in flight is not taken over',
    lanes,
    '    lane.maxInFlight = setting.maxInFlight;\n',
    '',
  ),
].map((mutation) => ({ ...mutation, isDescribed: true as const }));

const describedWindows: readonly Mutation[] = [
  ...describedReloads,
  ...[
    row(
      '14',
      'a level counts for a whole described window of the clock',
      windowLog,
      'Math.min(rollingEnd, endOf(log, windowMs, now))',
      'rollingEnd',
    ),
    row(
      '14',
      'a described window that becomes rolling is longer first',
      lessons,
      "if (meter.log !== null && counts === 'rolling')",
      'if (meter.log !== null && counts === null)',
    ),
    row(
      '13',
      'a late response carries all calls of a described window over',
      windowLog,
      'isRolling ? slot.units : Math.min(cost, slot.units)',
      'slot.units',
    ),
    row(
      '13',
      'calls that wait take nothing from a described window that is added',
      'src/limiter/policy/waiting-costs.policy.ts',
      'if (!requestWindows.includes(name)) return costs?.get(name) ?? 0;',
      'if (name !== null) return costs?.get(name) ?? 0;',
    ),
  ].map((mutation) => ({ ...mutation, isDescribed: true as const })),
];

export const mutations: readonly Mutation[] = [
  row('1', 'one slot too many', ceiling, 'live >= limit', 'live > limit'),
  row('1', 'a window of 55 s', ceiling, '60_000 + 150', '55_000'),
  row(
    '1',
    'the day is not asked',
    ceilings,
    'left === null || left.calls > 0',
    'left === null || left.calls >= 0',
  ),
  row('2', 'closed buckets grant', pump, 'closedMs(bucket, now) > 0)', 'closedMs(bucket, now) > Infinity)'),
  row('2', 'a crowd goes without a pilot', firstCalls, 'return lastGrantAt + pilotMs;', 'return now;'),
  row(
    '2',
    'a call that did not go was the pilot',
    firstCalls,
    'bucket.lastGrantAt = bucket.pilotAfter;',
    'bucket.pilotAfter = null;',
  ),
  row(
    '6',
    'a response to a pilot is not heard',
    firstCalls,
    'if (grantedAt === bucket.lastGrantAt) bucket.pilotAfter = null;',
    '',
  ),
  row(
    '2',
    'a later refusal shortens',
    lessons,
    'Math.max(bucket.closedUntil ?? now, now + closedMs)',
    'now + closedMs',
  ),
  row('2', 'grants cost nothing', meter, '  meter.level += cost;', ''),
  row(
    '2',
    'no room for late arrival',
    meter,
    'if (cost > 0 && meter.limit !== null) {',
    'if (cost < 0 && meter.limit !== null) {',
  ),
  row('2', 'calls on their way are forgotten', bounds, 'Math.max(0, meter.granted - meter.answered)', '0'),
  row('2', 'unproved charges are returned', lessons, 'closedMs > 0 && concerns(', 'concerns('),
  row('2', 'unrelated responses lower a meter', bounds, 'if (mark === null) return', 'if (limit < 0) return'),
  row(
    '3',
    'one more in flight',
    lanes,
    'lane.inFlight < lane.maxInFlight',
    'lane.inFlight <= lane.maxInFlight',
  ),
  row(
    '3',
    'unknown fate frees the lane',
    settling,
    'if (lane.maxInFlight === null) {',
    'if (lane.maxInFlight !== 0) {',
  ),
  row(
    '4',
    'calls that arrived later go first',
    entering,
    'return urgency * orderUnit + Math.floor(at * sequencePerMs);',
    'return urgency * orderUnit - Math.floor(at * sequencePerMs);',
  ),
  row('4', 'urgency is ignored', entering, 'return urgency * orderUnit', 'return 3 * orderUnit'),
  row('5', 'weights are ignored', granting, 'service / lane.weight', 'service'),
  row('5', 'a call counts one, whatever it costs', granting, 'service / lane.weight', '1 / lane.weight'),
  row(
    '5',
    'absence saves up a share',
    lanes,
    'if (lane.readyAs === null) lane.start = Math.max(lane.start, bucket.virtual);',
    '',
  ),
  row(
    '6',
    'no wake-up',
    dueTick,
    'this.#clock.after(Math.max(0, inMs) +',
    'this.#clock.after(Math.max(0, inMs) + 30_000 +',
  ),
  row('6', 'no tick', shard, "copy.say({ kind: 'tick' });", ''),
  row(
    '6',
    'others that are only assumed close a meter',
    meter,
    'over / netRate(meter), emptyInMs)',
    'over / netRate(meter), Infinity)',
  ),
  row(
    '6',
    'the edge is never left',
    edge,
    'if (!isAtEdge && !mayBeCounted) return;',
    'if (!isAtEdge) return;',
  ),
  row('6', 'a sleeping lane stays asleep', lanes, '    lane.asleep.clear();\n', ''),
  row('8', 'a lease is settled twice', lease, '    if (this.#isSettled) return;\n', ''),
  {
    ...row('9', 'clients that left are sent', queued, 'if (this.clientGone.aborted)', 'if (false)'),
    survives: 'the state of the call says it as well: it is gone (`wait-registry.ts`)',
  },
  row(
    '9',
    'clients that left stay in the line',
    queued,
    "    this.#keeper.end(this, { kind: 'client_gone', reason: this.clientGone.reason });",
    '',
  ),
  row('9', 'revoked keys are sent', queued, 'if (!this.request.stillValid()) return', 'if (false) return'),
  row('9', 'late calls are sent', queued, 'if (now > this.deadline) return', 'if (false) return'),
  row(
    '9',
    'reserved units stay',
    lessons,
    'for (const [meter, mark] of marked(bucket, lease)) giveUnitsBack(meter, { mark, grantedAt }, now);',
    'void grantedAt;',
  ),
  row('9', 'a slot of a call that was not sent is kept', lease, 'if (!isSent) {', 'if (false) {'),
  row(
    '9',
    'a ticket stays behind its caller',
    registry,
    "if (state.kind !== 'sent' || !state.ticketEnded) this.#takeOut(call);",
    '',
  ),
  row(
    '9',
    'a ticket comes back without a caller',
    registry,
    '      this.#takeOut(call);\n      return',
    '      return',
  ),
  row(
    '4',
    'near the end of a ceiling calls ask ahead of their grants',
    slotsAhead,
    '      isMinuteAmple && isDayAmple\n',
    '      isMinuteAmple || isDayAmple\n',
  ),
  row(
    '6',
    'a slot that is back wakes no lane of other buckets',
    slotsBack,
    'if (lane.waiting > 0) background(limiter.wake(lane.bucket, lane.key));',
    '',
  ),
  row(
    '6',
    'a slot that was taken ahead stays taken',
    slotsAhead,
    'if (slotReply !== null) await this.#slots.giveSlotBack(slotReply);',
    '',
  ),
  row(
    '9',
    'a call that is gone goes back to its lane',
    gate,
    'if (call.isGone || isMoved) {',
    'if (isMoved) {',
  ),
  row(
    '10',
    'the line is one longer',
    entering,
    'waiting >= admission.maxQueued;',
    'waiting > admission.maxQueued;',
  ),
  row('13', 'an urgent call goes before a full line', entering, 'isFull ? Math.min(waiting, 1) : 0', '0'),
  row(
    '10',
    'no deadline',
    registry,
    'this.#parts.clock.after(call.deadline - since, () => this.#expire(call));',
    '(): void => {};',
  ),
  row(
    '10',
    'a deadline outlives its call',
    registry,
    '    cancelDeadline();\n',
    '    void cancelDeadline;\n',
  ),
  row(
    '10',
    'a listener stays behind',
    registry,
    "    call.clientGone.removeEventListener('abort', call);\n",
    '',
  ),
  ...statedWaits,
  row(
    '13',
    'a line leaves while its lane stands still',
    standstill,
    'waitMs: standstill.waitMs + then.waitMs,',
    'waitMs: Math.max(standstill.waitMs, then.waitMs),',
  ),
  row(
    '14',
    'other limits of a ceiling wake no lane',
    lanes,
    "  wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);\n",
    '',
  ),
  row(
    '14',
    'a limit that is lowered stays',
    quota,
    '  meter.limit = limit;\n',
    '  meter.limit = limit === null ? null : Math.max(limit, meter.limit ?? 0);\n',
  ),
  row(
    '14',
    'a limit that is raised stays',
    quota,
    '  meter.limit = limit;\n',
    '  meter.limit = limit === null ? null : Math.min(limit, meter.limit ?? limit);\n',
  ),
  ...describedWindows,
  row('14', 'a weight that changes stays', lanes, '    lane.weight = setting.weight;\n', ''),
  row(
    '14',
    'the limiter does not hear of a reload',
    revise,
    'background(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));',
    'void [bucket, setting, lanes, background, limiter];',
  ),
  row(
    '14',
    'waiting calls go on under the old ceiling',
    revise,
    'ceiling: { key: request.ceiling.key, perMinute, perDay },',
    'ceiling: request.ceiling,',
  ),
  row(
    '13',
    'a call that asks for its slot stands before others',
    ceilingScan,
    '      .filter(({ asksForSlot }) => !asksForSlot)\n',
    '',
  ),
];
