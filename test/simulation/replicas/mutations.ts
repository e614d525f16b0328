/** As `../mutations.ts`: one-line changes of what makes several replicas one. */
import { row, toldWaits, type Mutation } from '../mutations.ts';

const remote = 'src/limiter/redis-limiter.ts';
const grants = 'src/limiter/redis-grants.ts';
const tickets = 'src/limiter/redis-tickets.ts';
const settling = 'src/limiter/redis-settling.ts';
const ticks = 'src/limiter/redis-ticks.ts';
const away = 'src/limiter/away-limiter.ts';
const places = 'src/limiter/redis-ceilings.ts';
const share = 'src/limiter/share-log.ts';
const link = 'src/limiter/redis-link.ts';
const presence = 'src/limiter/replica.ts';
const lease = 'src/admission/lease.ts';
const slots = 'src/admission/ceiling-slots.ts';
const scheduler = 'src/limiter/scheduler.policy.ts';
const pump = 'src/limiter/pump.policy.ts';

export const replicaMutations: readonly Mutation[] = [
  row('1', 'lost sends are not put back', places, 'of sends.all()) {', 'of [...sends.all()].slice(9)) {'),
  row(
    '1',
    'alone, a replica takes the whole ceiling',
    share,
    'Math.max(1, Math.floor(limit / Math.max(1, replicas)))',
    'Math.max(limit, replicas)',
  ),
  row('1', 'old places are used', slots, 'now <= slot.goodUntil', 'now <= slot.goodUntil + 60_000'),
  row(
    '2',
    'a closing goes with the data',
    grants,
    'book.settlingUntil = Math.max(book.settlingUntil, book.closedUntil);',
    '',
  ),
  row('3', 'no self-fence', lease, 'clock.monotonic() < grant.expiresAt', 'true'),
  row(
    '3',
    'any token of a call ends its lease',
    scheduler,
    'const lease = bucket.leases.get(token);\n  if (lease === undefined || lease.abandoned) return',
    'const lease = [...bucket.leases.values()].find((one) => token.startsWith(`${one.ticket.id}.`));\n  if (lease === undefined || lease.abandoned) return',
  ),
  row('3', 'no wait in a new epoch', grants, 'const heldUntil = capped ?', 'const heldUntil = lease.lost ?'),
  row('3', 'no wait after an absence', away, 'awaySince + leaseMs - clock', 'awaySince - clock'),
  {
    ...row('3', 'a stall is not counted', ticks, '      noticeStalls(leases);\n', ''),
    survives: 'the settlement that Redis does not know any more counts it as well (expired)',
  },
  row(
    '3',
    'grants without Redis are not counted',
    away,
    "if (replicas() > 1) telemetry.leaseLost('unavailable');",
    '',
  ),
  row('3', 'leases are not renewed', ticks, 'held.map(({ lease }) => lease),', '[],'),
  row('4', 'who is back first goes first', grants, 'if (now < book.settlingUntil) {', 'if (now < -1) {'),
  row(
    '4',
    'tickets are entered again at the end',
    tickets,
    'const admission = placed(ticket);',
    'const admission = { ...placed(ticket), order: null };',
  ),
  row(
    '5',
    'returned grants save up a share',
    scheduler,
    'giveBack(bucket, lease, now);',
    'giveBack(bucket, lease, now);\n      lane.start -= 1_000 / lane.weight;',
  ),
  row('6', 'nobody promises to look', ticks, '(book.leads ? 0 : followMs)', 'followMs'),
  row(
    '6',
    'messages are not heard',
    remote,
    'for (const told of message.grants) grants.deliver',
    'for (const told of []) grants.deliver',
  ),
  row(
    '6',
    'lost grants are not told again',
    grants,
    'for (const told of reply.grants) deliver',
    'for (const told of []) deliver',
  ),
  {
    ...row(
      '6',
      'a broken promise is kept for ever',
      ticks,
      'const followMs = 400;',
      'const followMs = 400_000;',
    ),
    survives: 'the tick, once a second, pumps too: a dead promiser costs a second instead of 0.4 s',
  },
  row('7', 'lost tickets stay lost', ticks, 'told < stillWaiting.length || isDoubtful', 'isDoubtful'),
  row('7', 'calls stay behind when Redis is back', away, '      remote.reenter(admission);\n', ''),
  row(
    '7',
    'calls stay behind when Redis is away',
    away,
    'for (const admission of remote.takeWaiting())',
    'for (const admission of [])',
  ),
  {
    ...row(
      '7',
      'settlements are told once',
      settling,
      'pending.set(lease.lease, told);',
      'pending.has(lease.lease);',
    ),
    survives:
      'leases nobody ends expire, and tickets that wait are entered again: a capped lane waits a lease (redis-pending.test.ts)',
  },
  row('7', 'a new epoch is not noticed', presence, 'if (isNews) lost(agoMs);', ''),
  row(
    '7',
    'the dead hold their places',
    pump,
    'bucket.replicas.scoreOf(replica) + replicaLifeMs >= now',
    'bucket !== null',
  ),
  row(
    '7',
    'leases of the dead stay',
    pump,
    'first.score <= now && budget.left > 0',
    'first.score <= -1 && budget.left > 0',
  ),
  row('8', 'a grant is handed out twice', grants, '    if (book.leases.has(told.lease)) return;\n', ''),
  row(
    '8',
    'an ended grant is handed out again',
    grants,
    '    if (settling.hasEnded(told.lease)) return settling.tellAgain(book, told.lease);\n',
    '',
  ),
  row(
    '9',
    'grants nobody waits for are kept',
    settling,
    '    background(tellSettled(book, told, undefined));\n  };',
    '  };',
  ),
  row('9', 'a call that leaves early is entered', tickets, '    ticket.cancelled = true;\n', ''),
  row(
    '10',
    'commands are repeated for a minute',
    link,
    'const patienceMs = 500;',
    'const patienceMs = 60_000;',
  ),
  row(
    '10',
    'refusals are let in',
    scheduler,
    'if (refusal !== null) return { ...refusal, effects: before };',
    '',
  ),
  ...toldWaits.map((mutation) => ({ ...mutation, what: `${mutation.what} (over replicas)` })),
  row(
    '14',
    'over replicas, other limits of a ceiling wake no lane',
    'src/limiter/lanes.policy.ts',
    "  wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);\n",
    '',
  ),
  row(
    '14',
    'over replicas, a limit that is lowered stays',
    'src/limiter/meter-quota.policy.ts',
    '  meter.limit = limit;\n',
    '  meter.limit = limit === null ? null : Math.max(limit, meter.limit ?? 0);\n',
  ),
  row(
    '14',
    'Redis is not told of a reload',
    remote,
    "await ask<'reconfigure'>(book, { kind: 'reconfigure', setting, lanes });",
    'void [setting, lanes];',
  ),
  row(
    '14',
    'what is entered again is entered under the old limits',
    remote,
    'if (lane !== undefined) ticket.admission = { ...ticket.admission, ...lane, setting };',
    'void [lane, setting];',
  ),
];
