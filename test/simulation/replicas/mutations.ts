/** As `../mutations.ts`: one-line changes of what makes several replicas one. */
import { row, describedReloads, statedWaits, type Mutation } from '../mutations.ts';

const calls = 'src/limiter/redis/bucket-calls.ts';
const deadReplicas = 'src/limiter/policy/dead-replicas.policy.ts';
const entry = 'src/limiter/redis/bucket-entry.ts';
const replies = 'src/limiter/redis/bucket-replies.ts';
const view = 'src/limiter/redis/bucket-view.ts';
const session = 'src/limiter/redis/bucket-session.ts';
const ticks = 'src/limiter/redis/bucket-ticks.ts';
const timer = 'src/limiter/redis/pump-timer.ts';
const ended = 'src/limiter/redis/ended-leases.ts';
const presence = 'src/limiter/redis/presence.ts';
const health = 'src/redis/health.ts';
const failover = 'src/limiter/failover/limiter.ts';
const local = 'src/limiter/failover/local-calls.ts';
const ceilings = 'src/limiter/failover/ceilings.ts';
const share = 'src/limiter/failover/quota-share.ts';
const lease = 'src/admission/lease.ts';
const slots = 'src/admission/ceiling-slots.ts';
const entering = 'src/limiter/policy/admit.policy.ts';
const settling = 'src/limiter/policy/settle.policy.ts';
const pump = 'src/limiter/policy/pump.policy.ts';

export const replicaMutations: readonly Mutation[] = [
  row(
    '1',
    'lost sends are not put back',
    ceilings,
    'of this.#sends.all()) {',
    'of [...this.#sends.all()].slice(9)) {',
  ),
  row(
    '1',
    'without Redis, a replica takes the whole ceiling',
    share,
    'Math.max(1, Math.floor(limit / Math.max(1, replicas)))',
    'Math.max(limit, replicas)',
  ),
  row(
    '1',
    'old slots are used',
    slots,
    '+ spareMs <= slotReply.goodUntil',
    '+ spareMs <= slotReply.goodUntil + 60_000',
  ),
  row(
    '2',
    'a closing goes with the data',
    view,
    'if (this.closing.until !== null) this.holdUntil(this.closing.until);',
    '',
  ),
  row('3', 'no self-fence', lease, 'this.#parts.clock.monotonic() < this.grant.expiresAt', 'true'),
  row(
    '3',
    'any token of a call ends its lease',
    settling,
    "const lease = bucket.leases.get(token);\n  if (lease === undefined || lease.stage === 'abandoned') return",
    "const lease = [...bucket.leases.values()].find((one) => token.startsWith(`${one.ticket.id}.`));\n  if (lease === undefined || lease.stage === 'abandoned') return",
  ),
  row(
    '3',
    'new replicas do not see that others live',
    presence,
    'if (known === null) connection.join(livingChannel);',
    '',
  ),
  row(
    '3',
    'what another server does not have is not missed',
    ticks,
    '(lease.isLost || missing.has(lease.lease))',
    'lease.isLost',
  ),
  row(
    '3',
    'no wait in a new epoch',
    calls,
    'lease.isCapped ? this.kept',
    "lease.state.kind === 'lost' ? this.kept",
  ),
  row(
    '3',
    'a kept grant is handed over, whatever was reloaded meanwhile',
    'src/limiter/redis/kept-grants.ts',
    'Math.ceil(ms), () => background.run(putBack(lease))',
    'Math.ceil(ms), () => (lease.endQuarantine(), context.listener.onGrant(lease))',
  ),
  row(
    '3',
    'no wait after an absence',
    'src/limiter/failover/quarantine.policy.ts',
    'leaseMs - absentMs',
    '-absentMs',
  ),
  row('3', 'a stall is not counted', ticks, '      this.#countStalled(leases);\n', ''),
  row(
    '3',
    'grants without Redis are not counted',
    local,
    "if (replicas() > 1) telemetry.leaseLost('unavailable');",
    '',
  ),
  row('3', 'leases are not renewed', ticks, 'leases: renewed.map(({ lease }) => lease)', 'leases: []'),
  row('4', 'who is back first goes first', calls, 'if (grantedAt < resumeAt) {', 'if (grantedAt < 0) {'),
  row(
    '4',
    'tickets are entered again at the end',
    calls,
    'const admission = this.#context.positions.positioned(ticket);',
    "const order = this.#context.positions.orderAt(7, this.#context.clock.monotonic());\n    const admission = { ...ticket.admission, position: { kind: 'kept', order } } as const;",
  ),
  row(
    '5',
    'returned grants save up a share',
    settling,
    'giveLeaseUnitsBack(bucket, lease, now);',
    'giveLeaseUnitsBack(bucket, lease, now);\n      lane.start -= 1_000 / lane.weight;',
  ),
  row('6', 'the pump leader sets no timer', timer, '(due.isLeader ? 0 : followMs)', 'followMs'),
  row(
    '6',
    'messages of Redis are not read',
    replies,
    'for (const grant of message.grants) calls.receive',
    'for (const grant of []) calls.receive',
  ),
  row(
    '6',
    'lost grants are not reported again',
    replies,
    'for (const grant of bucket.grants) calls.receive',
    'for (const grant of []) calls.receive',
  ),
  {
    ...row(
      '6',
      'a dead pump leader is waited for',
      timer,
      'const followMs = 400;',
      'const followMs = 400_000;',
    ),
    survives: 'the tick, once a second, pumps too: a dead pump leader costs a second instead of 0.4 s',
  },
  row(
    '7',
    'lost tickets stay lost',
    ticks,
    'reply.waitingHere + bucket.unnamed < known || held.needsResync',
    'held.needsResync',
  ),
  row(
    '7',
    'calls stay in this process when Redis is back',
    failover,
    'this.#local.takeWaiting()) this.remote.reenter(admission);',
    'this.#local.takeWaiting()) void admission;',
  ),
  row(
    '7',
    'calls stay in Redis when it is unavailable',
    failover,
    'for (const admission of this.remote.takeWaiting())',
    'for (const admission of [])',
  ),
  {
    ...row(
      '7',
      'settlements are sent once',
      ended,
      'this.#deferred.set(sent.lease.lease, { sent, isRejected });',
      'this.#deferred.has(sent.lease.lease);',
    ),
    survives:
      'leases nobody ends expire, and tickets that wait are entered again: a capped lane waits a lease (limiter/redis/pending.test.ts)',
  },
  row('7', 'a new epoch is not noticed', presence, '    this.#noteLoss(agoMs);\n', ''),
  row(
    '7',
    'tickets of dead replicas keep their positions',
    pump,
    'heardAt !== null && heardAt + replicaLifeMs >= now',
    'heardAt === null || now > 0',
  ),
  row(
    '7',
    'tickets of dead replicas are granted until a tick forgets them',
    pump,
    'if (isAlive(bucket, ticket.replica, now)) return',
    'if (bucket.replicas.scoreOf(ticket.replica) !== null) return',
  ),
  row(
    '13',
    'tickets of dead replicas count as ahead of others',
    deadReplicas,
    "if (hasWaiting(bucket, first.name)) bucket.searchedTo = '';",
    '',
  ),
  row(
    '13',
    'a search for tickets of dead replicas waits for the next second',
    'src/limiter/policy/apply.policy.ts',
    'if (bucket.searchedTo !== null) nextAt = now;',
    '',
  ),
  row(
    '13',
    'a search for tickets of dead replicas ends with the first tick',
    deadReplicas,
    'bucket.searchedTo = last === undefined ? null : nameOf(last);',
    'bucket.searchedTo = null;',
  ),
  row(
    '7',
    'leases of dead replicas stay',
    pump,
    'first.score <= now && budget.left > 0',
    'first.score <= -1 && budget.left > 0',
  ),
  row(
    '8',
    'a grant is handed out twice',
    calls,
    '    if (this.held.leases.has(grant.lease)) return null;\n',
    '',
  ),
  row('8', 'an ended grant is handed out again', calls, 'if (ended.has(grant.lease)) {', 'if (false) {'),
  row(
    '9',
    'grants nobody waits for are kept',
    calls,
    '    background.run(this.sendSettlement(sent, null));\n  }',
    '  }',
  ),
  row('9', 'a call that leaves early is entered', entry, "    ticket.state = { kind: 'withdrawn' };\n", ''),
  row(
    '10',
    'commands are repeated for a minute',
    health,
    'const patienceMs = 500;',
    'const patienceMs = 60_000;',
  ),
  row(
    '10',
    'refusals are let in',
    entering,
    'if (refusal !== null) return { ...refusal, effects: before };',
    '',
  ),
  ...[...statedWaits, ...describedReloads].map((mutation) => ({
    ...mutation,
    what: `${mutation.what} (over replicas)`,
  })),
  row(
    '14',
    'over replicas, other limits of a ceiling wake no lane',
    'src/limiter/policy/lanes.policy.ts',
    "  wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);\n",
    '',
  ),
  row(
    '14',
    'over replicas, a limit that is lowered stays',
    'src/limiter/policy/meter-quota.policy.ts',
    '  meter.limit = limit;\n',
    '  meter.limit = limit === null ? null : Math.max(limit, meter.limit ?? 0);\n',
  ),
  row(
    '14',
    'Redis does not hear of a reload',
    session,
    "await this.#queue.send<'reconfigure'>({ kind: 'reconfigure', setting, lanes: some });",
    'void [setting, some];',
  ),
  row(
    '14',
    'what is entered again is entered under the old limits',
    session,
    'for (const ticket of this.calls.held.tickets.values()) ticket.admission = revised(ticket.admission);',
    'void revised;',
  ),
  row(
    '14',
    'calls on their way to Redis enter under the limits of before a reload',
    session,
    "event.kind === 'admit' ? { kind: 'admit', admission: revised(event.admission) } : event,",
    'event,',
  ),
];
