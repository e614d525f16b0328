/** A refusal that told a time, and what was known of the other calls then. */

/** What a call was told when it was refused. */
export interface Told {
  readonly id: string;
  readonly code: string;
  /** When it was refused, and after which time it was asked to come again. Milliseconds. */
  readonly at: number;
  readonly retryInMs: number;
  /** Calls that had come by then, and those of them that had been sent. */
  readonly came: ReadonlySet<string>;
  readonly sent: ReadonlySet<string>;
  /** Calls that had ended by then. */
  readonly ended: ReadonlySet<string>;
  /** Calls that had not ended then and whose tickets the store had taken in when it decided. */
  readonly known: ReadonlySet<string>;
}

interface SeenCall {
  readonly plan: { readonly id: string };
  readonly state: 'new' | 'entering' | 'waiting' | 'sent' | 'ended';
  readonly sentAt: readonly number[];
  /** When the store took its ticket in, or refused it; -1 = it has not come there. */
  readonly admittedAt: number;
}

export function toldOf(
  calls: readonly SeenCall[],
  refusal: Pick<Told, 'id' | 'code' | 'at' | 'retryInMs'>,
): Told {
  const [came, sent] = [new Set<string>(), new Set<string>()];
  const [ended, known] = [new Set<string>(), new Set<string>()];
  const decidedAt = decisionOf(calls, refusal);
  for (const { plan, state, sentAt, admittedAt } of calls) {
    if (state !== 'new') came.add(plan.id);
    if (sentAt.length > 0) sent.add(plan.id);
    if (state === 'ended') ended.add(plan.id);
    if (state !== 'ended' && admittedAt >= 0 && admittedAt <= decidedAt) known.add(plan.id);
  }
  return { ...refusal, came, sent, ended, known };
}

/** A call that never waited was decided on when its ticket came to the store. */
function decisionOf(calls: readonly SeenCall[], { id, at }: Pick<Told, 'id' | 'at'>): number {
  const call = calls.find(({ plan }) => plan.id === id);
  return call?.state === 'entering' && call.admittedAt >= 0 ? call.admittedAt : at;
}
