/** As `../mutations.ts`: one-line changes of what makes several replicas one. */
import { row, describedReloads, statedWaits, type Mutation } from '../mutations.ts';

const deadReplicas = 'src/limiter/policy/dead-replicas.policy.ts';
const health = 'src/redis/health.ts';
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
  row('3', 'no self-fence', lease, 'this.#parts.clock.monotonic() < this.grant.expiresAt', 'true'),
  row(
    '3',
    'any token of a call ends its lease',
    settling,
    "const lease = bucket.leases.get(token);\n  if (lease === undefined || lease.stage === 'abandoned') return",
    "const lease = [...bucket.leases.values()].find((one) => token.startsWith(`${one.ticket.id}.`));\n  if (lease === undefined || lease.stage === 'abandoned') return",
  ),
  row(
    '5',
    'returned grants save up a share',
    settling,
    'giveLeaseUnitsBack(bucket, lease, now);',
    'giveLeaseUnitsBack(bucket, lease, now);\n      lane.start -= 1_000 / lane.weight;',
  ),
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
];
