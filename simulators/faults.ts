/**
 * Planted faults: a queue of them, each taken by the next calls that it fits.
 *
 * Owns: the vocabulary and the queue. Does not own what a fault does.
 */

/** Language-model faults first, then those of the commerce API; both know the shared ones. */
const faultKinds = [
  // shared
  'answer',
  '500',
  '502-html',
  '503',
  'reset-before-response',
  'hang',
  'slow',
  'clock-skew',
  'no-ratelimit-headers',
  // language model
  'late-429',
  'reset-mid-stream',
  'stream-error',
  'limit-change',
  'headers-minus-one',
  'retry-after-zero',
  // commerce
  'internal',
  'reset-before-execution',
  'reduce',
  'otherConsumer',
  'duplicate-call-limit',
] as const;

export type FaultKind = (typeof faultKinds)[number];

export interface Fault {
  readonly kind: FaultKind;
  /** How many calls it hits; default 1. */
  readonly times?: number;
  /** Only calls of this credential, model, store, or whose path contains this text. */
  readonly match?: {
    readonly key?: string;
    readonly model?: string;
    readonly store?: string;
    readonly path?: string;
  };
  /** `stream-error`, `reset-mid-stream`: chunks sent before it takes effect; default 1. */
  readonly afterChunks?: number;
  /** `slow`: extra latency. `reduce`: how long the limit stays reduced. `late-429`: delay (default 500). */
  readonly ms?: number;
  /** `clock-skew`: seconds added to `Date` and absolute resets. */
  readonly seconds?: number;
  /** `limit-change`: dimension and its new limit. */
  readonly dimension?: string;
  readonly limit?: number;
  /** `otherConsumer`: points per second that an outside consumer takes from now on. */
  readonly perSecond?: number;
  /** `reduce`: factor, default 0.1. */
  readonly factor?: number;
  /** `answer`: replaces the whole response, uncharged: for replaying recorded samples. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** Text as it is, anything else as JSON. */
  readonly body?: unknown;
}

export interface FaultTarget {
  readonly key: string;
  readonly model: string;
  readonly store: string;
  readonly path: string;
}

export class FaultQueue {
  #queue: { fault: Fault; left: number }[] = [];

  /** @throws Error when the kind is not known: a misspelt fault must not turn into a passing test. */
  add(fault: Fault): void {
    if (!faultKinds.includes(fault.kind)) throw new Error(`unknown fault "${String(fault.kind)}"`);
    this.#queue.push({ fault, left: fault.times ?? 1 });
  }

  /** Takes the first fault of one of `kinds` that fits the call. */
  take(kinds: ReadonlySet<FaultKind>, target: FaultTarget): Fault | undefined {
    if (this.#queue.length === 0) return undefined;
    const found = this.#queue.find(({ fault }) => kinds.has(fault.kind) && fits(fault, target));
    if (found === undefined) return undefined;
    found.left -= 1;
    if (found.left <= 0) this.#queue = this.#queue.filter((entry) => entry !== found);
    return found.fault;
  }

  get waiting(): readonly Fault[] {
    return this.#queue.map(({ fault, left }) => ({ ...fault, times: left }));
  }

  clear(): void {
    this.#queue = [];
  }
}

function fits({ match }: Fault, target: FaultTarget): boolean {
  if (match === undefined) return true;
  return (
    (match.key === undefined || match.key === target.key) &&
    (match.model === undefined || match.model === target.model) &&
    (match.store === undefined || match.store === target.store) &&
    (match.path === undefined || target.path.includes(match.path))
  );
}
