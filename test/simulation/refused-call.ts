/** A refusal that stated a time, and what was known of the other calls then. Owns no judgement (`oracle.ts`). */

/** The facts that a refusal stated to its call. */
export interface RefusedCall {
  readonly id: string;
  readonly code: string;
  /** When it was refused, and after which time it was asked to come again. Milliseconds. */
  readonly at: number;
  readonly retryInMs: number;
  /** It had not waited in a lane. */
  readonly isArriving: boolean;
  /** Calls that had come by then, and those of them that had been sent. */
  readonly came: ReadonlySet<string>;
  readonly sent: ReadonlySet<string>;
  /** Those that had been sent so shortly before that their slots of the ceiling may not have been seen. */
  readonly leaving: ReadonlySet<string>;
  /** Those that the upstream had not answered yet. */
  readonly inFlight: ReadonlySet<string>;
  /** Those to which a response had come, which states what the upstream has. */
  readonly answered: ReadonlySet<string>;
  /** Calls that had ended by then. */
  readonly ended: ReadonlySet<string>;
  /** Those of them that had left their lines so shortly before that the store may not have known. */
  readonly left: ReadonlySet<string>;
  /** Those that the store had let into their lines so shortly before that whoever refused it may not have known. */
  readonly unheard: ReadonlySet<string>;
  /** Calls that had not ended then and whose tickets the store had taken in when it decided. */
  readonly known: ReadonlySet<string>;
}

interface SeenCall {
  readonly plan: { readonly id: string };
  readonly state: 'new' | 'entering' | 'waiting' | 'sent' | 'ended';
  readonly sentAt: readonly number[];
  /** In which words it ended. */
  readonly ends: readonly string[];
  /** -1 = it has not ended. */
  readonly endedAt: number;
  /** When the store took its ticket in, or refused it; -1 = it has not come there. */
  readonly admittedAt: number;
  /** It was not let in. */
  readonly isRefusedAtEntry: boolean;
}

/**
 * @param shortlyMs how long it takes until the store knows of what happens in a process.
 * @param lagMs how far a copy of the store may be behind, by which a process refuses a call that has not come to the store.
 */
export function refusedCallOf(
  calls: readonly SeenCall[],
  refusal: Pick<RefusedCall, 'id' | 'code' | 'at' | 'retryInMs'>,
  shortlyMs: number,
  lagMs = 0,
): RefusedCall {
  const [came, sent, inFlight] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const [ended, known, left] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const [answered, unheard, leaving] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const itself = calls.find(({ plan }) => plan.id === refusal.id);
  const isArriving = itself?.state === 'entering';
  // A call that never waited was decided on when its ticket came to the store.
  const decidedAt = isArriving && itself.admittedAt >= 0 ? itself.admittedAt : refusal.at;
  const heardUntil = isArriving && itself.admittedAt < 0 ? refusal.at - lagMs : decidedAt;
  for (const { plan, state, sentAt, admittedAt, isRefusedAtEntry, endedAt, ends } of calls) {
    if (state !== 'new') came.add(plan.id);
    if (sentAt.length > 0) sent.add(plan.id);
    if (sentAt.some((at) => at >= refusal.at - shortlyMs)) leaving.add(plan.id);
    if (state === 'sent') inFlight.add(plan.id);
    if (state === 'ended') ended.add(plan.id);
    if (ends.includes('answered')) answered.add(plan.id);
    if (endedAt >= refusal.at - shortlyMs) left.add(plan.id);
    const isIn = admittedAt >= 0 && admittedAt <= decidedAt && !isRefusedAtEntry;
    if (isIn && admittedAt > heardUntil) unheard.add(plan.id);
    if (state !== 'ended' && (isIn || plan.id === refusal.id)) known.add(plan.id);
  }
  return { ...refusal, isArriving, came, sent, leaving, inFlight, answered, ended, left, unheard, known };
}
