/** A refusal that stated a time, and what was known of the other calls then. Owns no judgement (`oracle.ts`). */
import type { Call } from './replicas/ledger.ts';

export interface RefusedCall {
  readonly id: string;
  readonly code: string;
  /** When it was refused, and after which time it was asked to come again. Milliseconds. */
  readonly at: number;
  readonly retryInMs: number;
  readonly isArriving: boolean;
  /** Calls that had come by then, and those of them that had been sent. */
  readonly came: ReadonlySet<string>;
  readonly sent: ReadonlySet<string>;
  /** Calls that had not ended then and whose tickets the store had taken in when it decided. */
  readonly known: ReadonlySet<string>;
  /** Calls of its bucket under way that crossed one with a response, so that no response tells whether the upstream has counted them. */
  readonly uncounted: ReadonlySet<string>;
  /** No other call of its bucket came to the store or left it so shortly before that whoever refused it may not have heard of it. */
  readonly isSure: boolean;
}

/** Of two calls that left within this time of each other either may have arrived first. Milliseconds. */
const crossingMs = 250;

/** @param lagMs how long it takes until everybody knows of what happens in a process. */
export function refusedCallOf(
  calls: readonly Call[],
  refusal: Pick<RefusedCall, 'id' | 'code' | 'at' | 'retryInMs'>,
  lagMs: number,
): RefusedCall {
  const [came, sent, known] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const itself = calls.find(({ plan }) => plan.id === refusal.id);
  const isArriving = itself?.state === 'entering';
  // A call that never waited was decided on when its ticket came to the store.
  const decidedAt = isArriving && itself.admittedAt >= 0 ? itself.admittedAt : refusal.at;
  let isSure = true;
  for (const { plan, state, sentAt, admittedAt, isRefusedAtEntry, endedAt } of calls) {
    if (state !== 'new') came.add(plan.id);
    if (sentAt.length > 0) sent.add(plan.id);
    const isIn = admittedAt >= 0 && admittedAt <= decidedAt && !isRefusedAtEntry;
    if (state !== 'ended' && (isIn || plan.id === refusal.id)) known.add(plan.id);
    if (plan.id === refusal.id || plan.lane.bucket !== itself?.plan.lane.bucket) continue;
    const isRecent = lagMs > 0 && Math.max(admittedAt, sentAt.at(-1) ?? -1) >= refusal.at - lagMs;
    if (state === 'entering' || isRecent || endedAt >= refusal.at - lagMs) isSure = false;
  }
  const sentHere = calls.filter(
    ({ plan, sentAt }) => sentAt.length > 0 && plan.lane.bucket === itself?.plan.lane.bucket,
  );
  const answeredAt = sentHere.flatMap(({ state, sentAt }) => (state === 'ended' ? sentAt.slice(-1) : []));
  const isUncounted = ({ state, sentAt }: Call): boolean =>
    state === 'sent' && answeredAt.some((at) => Math.abs(at - (sentAt.at(-1) ?? 0)) <= crossingMs);
  const uncounted = new Set(sentHere.filter(isUncounted).map(({ plan }) => plan.id));
  return { ...refusal, isArriving, came, sent, known, uncounted, isSure };
}
