/**
 * One call and all clients that wait for its response: the first one and those whose repeats have joined.
 *
 *   held ⇄ sent ──▶ answering ──▶ ended
 *
 * Owns: whether the call goes on when its clients leave. Does not own: which calls are repeats (`repeats.ts`).
 * Keeps: a call that waits ends when its last client leaves; a call that was sent and carries a key is finished without clients; a
 * call that was sent and that an SDK will repeat goes on for `graceMs` without a client.
 */
import { Buffer } from 'node:buffer';
import type { Outcome } from '../call.ts';
import { CallAbort, type CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { endsBeforeResponse } from './conflicts.ts';
import type { Audience, CallResult, RepeatKey } from './repeat.ts';
import { SharedResponse } from './shared-response.ts';

/** SDKs repeat a call after up to 8 s (openai, anthropic, groq), shopify-api-node after 2 s. Milliseconds. */
export const graceMs = 10_000;

type Stage =
  | { readonly kind: 'held' | 'sent' | 'ended' }
  | { readonly kind: 'answering'; readonly outcome: Outcome; readonly response: SharedResponse };

export interface SharedCallParts {
  readonly clock: Clock;
  readonly key: RepeatKey;
  readonly maxKeptBytes: number;
  /** Called when the last client has left while the call waited. */
  readonly onLeft: () => void;
  /** Called when the last client has left after the call had been sent. */
  readonly onAbandoned: () => void;
  /** Called when the response of the call begins to be passed on as an event stream. */
  readonly onStreaming: () => void;
  readonly onEnded: (ended: CallResult) => void;
}

export class SharedCall extends CallAbort implements Audience {
  readonly key: RepeatKey;
  /** Resolves when nothing of the call is under way any more. */
  readonly ended: Promise<void>;
  readonly #parts: SharedCallParts;
  #stage: Stage = { kind: 'held' };
  #clients = 0;
  #wasAbandoned = false;
  #outcome: Promise<Outcome> | null = null;
  /** A response whose body is complete in memory; all clients get this one. */
  #whole: Outcome | null = null;
  #cancelGrace = (): void => {};
  #resolveEnded = (): void => {};

  constructor(parts: SharedCallParts) {
    super();
    this.#parts = parts;
    this.key = parts.key;
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  /** `run` makes the response; it is called once. */
  begin(run: (audience: Audience) => Promise<Outcome>): void {
    this.#outcome = run(this);
    this.#outcome.then(
      (outcome) => this.#answered(outcome),
      (failure: unknown) => this.#end({ kind: 'failed', failure }),
    );
  }

  /** No repeat can join any more: its clients have taken their copies. */
  get isAnswering(): boolean {
    return this.#stage.kind === 'answering';
  }

  /** The call was sent, and no client waits for its response now. */
  get isAbandoned(): boolean {
    return this.#clients === 0 && this.#stage.kind !== 'held';
  }

  /** The response is passed on as it arrives: a client that joins later could not get its beginning. */
  get isStreaming(): boolean {
    return this.#stage.kind === 'answering' && isEventStream(this.#stage.outcome.fields);
  }

  moved(to: 'upstream' | 'lane'): void {
    if (this.#stage.kind !== 'held' && this.#stage.kind !== 'sent') return;
    this.#stage = { kind: to === 'upstream' ? 'sent' : 'held' };
    this.#cancelGrace();
    if (this.#clients === 0) this.#left();
  }

  /** One client waits for the response, and gets a copy of it. */
  async join(clientGone: CallSignal): Promise<Outcome> {
    this.#clients += 1;
    this.#cancelGrace();
    const leave = (): void => {
      this.#clients -= 1;
      if (this.#clients === 0) this.#left();
    };
    if (clientGone.aborted) leave();
    else clientGone.addEventListener('abort', leave, { once: true });
    try {
      const outcome = await Promise.race([this.#outcome ?? never(), gone(clientGone)]);
      return this.#stage.kind === 'answering' ? this.#stage.response.copy() : (this.#whole ?? outcome);
    } catch (failure) {
      if (!this.aborted || failure !== this.reason) throw failure;
      // The call was aborted because its last client, this one, left, or because the process ends while the client waits.
      throw clientGone.aborted ? clientGone.reason : endsBeforeResponse();
    } finally {
      clientGone.removeEventListener('abort', leave);
    }
  }

  #left(): void {
    const { clock, key, onLeft, onAbandoned } = this.#parts;
    if (this.#stage.kind === 'held') {
      onLeft();
      this.abort();
    } else if (this.#stage.kind === 'sent') {
      this.#wasAbandoned = true;
      onAbandoned();
      if (key.marker !== 'key') this.#cancelGrace = clock.after(graceMs, () => this.abort());
    }
  }

  #answered(outcome: Outcome): void {
    this.#cancelGrace();
    const { body } = outcome;
    const { maxKeptBytes } = this.#parts;
    if (body === null || Buffer.isBuffer(body)) {
      this.#whole = endingOnce(outcome);
      if (this.#clients === 0) this.#whole.onEnd('client_gone');
      const whole = body ?? Buffer.alloc(0);
      this.#end(this.#answeredWith(outcome, whole.length > maxKeptBytes ? 'too_large' : whole));
      return;
    }
    const keeps = this.#isKept;
    const response = new SharedResponse(
      { ...outcome, body },
      {
        isFinished: () => keeps,
        maxKeptBytes: keeps ? maxKeptBytes : 0,
        onBody: (whole) =>
          this.#end(whole === null ? { kind: 'failed', failure: null } : this.#answeredWith(outcome, whole)),
      },
    );
    this.#stage = { kind: 'answering', outcome, response };
    if (this.isStreaming) this.#parts.onStreaming();
    // The clients take their copies in this turn of the event loop.
    setImmediate(() => response.unclaimed());
  }

  /** Throttled responses and those of a broken upstream are no results of the call: a repeat of it is made again. */
  #answeredWith(outcome: Outcome, body: Buffer | 'too_large'): CallResult {
    const { status, throttled, fields, shouldRetry } = outcome;
    const counted = outcome.errorStatus?.() ?? status;
    const isKept = this.#isKept && !throttled && counted !== 429 && counted < 500;
    return {
      kind: 'answered',
      response: body === 'too_large' ? body : { status, fields, body, shouldRetry },
      isKept,
    };
  }

  #end(ended: CallResult): void {
    this.#stage = { kind: 'ended' };
    this.#cancelGrace();
    this.#parts.onEnded(ended);
    this.#resolveEnded();
  }

  /** A response without a key is kept only where its client may never have had it. */
  get #isKept(): boolean {
    return this.#parts.key.marker === 'key' || this.#wasAbandoned;
  }
}

/** The outcome for several clients: its `onEnd` is called for the first client whose copy ends, and not again. */
function endingOnce(outcome: Outcome): Outcome {
  let isOver = false;
  return {
    ...outcome,
    onEnd: (how) => {
      if (!isOver) outcome.onEnd(how);
      isOver = true;
    },
  };
}

function isEventStream(fields: readonly string[]): boolean {
  const at = fields.findIndex((name, index) => index % 2 === 0 && /^content-type$/i.test(name));
  return at >= 0 && /^text\/event-stream\b/i.test(fields[at + 1] ?? '');
}

/** Rejects with the signal's reason when the client leaves; never resolves. */
function gone(signal: CallSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    // The reason itself: by it ingress distinguishes a client that left from a fault.
    const leave = (): void => reject(signal.reason as unknown);
    if (signal.aborted) leave();
    else signal.addEventListener('abort', leave, { once: true });
  });
}

const never = (): Promise<never> => Promise.reject(new Refusal('idempotency_conflict'));
