/**
 * One call and all clients that wait for its response: the first one and those whose repeats have joined.
 *
 *   held ⇄ sent ──▶ answering ──▶ ended
 *
 * Owns: whether the call goes on when its clients leave, and whether a client's own API key still lets it have the response. Does not
 * own: which calls are repeats (`repeats.ts`).
 * Keeps: a call that waits ends when its last client leaves; a call that was sent and carries a key is finished without clients; a
 * call that was sent and that an SDK will repeat goes on for `graceMs` without a client, for as long as its response can be given
 * from the first byte.
 */
import { Buffer } from 'node:buffer';
import type { Audience, Outcome, ResponseEnd } from '../call.ts';
import { CallAbort, type CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import { keyEnded, Refusal } from '../errors.ts';
import type { KeptBody } from './kept-responses.ts';
import { showsThatItRan } from './ran.ts';
import { endsBeforeResponse, type CallResult, type RepeatKey } from './repeat.ts';
import { SharedResponse } from './shared-response.ts';

/** SDKs repeat a call after up to 8 s (openai, anthropic, groq). Milliseconds. */
export const graceMs = 10_000;

/** A client that waits for the response. */
export interface Client {
  readonly clientGone: CallSignal;
  /** False once the API key with which this client called is not valid any more. */
  readonly stillValid: () => boolean;
}

interface Member extends Client {
  /** The call was sent while this client waited with a valid key: it gets the response, as the client of any other call would. */
  isEntitled: boolean;
  /** Ends this client's waiting. */
  refuse: (reason: unknown) => void;
}

type Stage =
  | { readonly kind: 'held' | 'sent' | 'ended' }
  /** `result`: the body has ended, and clients still read it; `null` = it has not. */
  | {
      readonly kind: 'answering';
      readonly response: SharedResponse | null;
      readonly result: Extract<CallResult, { kind: 'answered' }> | null;
    };

export interface SharedCallParts {
  readonly clock: Clock;
  readonly key: RepeatKey;
  /** Keeps the response while it passes. */
  readonly kept: KeptBody;
  readonly maxKeptBytes: number;
  /** Called when the last client has left while the call waited, or the call goes back into its lane without one. */
  readonly onLeft: () => void;
  /** Called when the last client of a call without a key has left after the call had been sent: a repeat may have its response. */
  readonly onAbandoned: () => void;
  /** Resolves with true when no repeat has taken the call, and none can any more. Never rejects. */
  readonly withdraw: () => Promise<boolean>;
  readonly onEnded: (ended: CallResult) => void;
}

export class SharedCall extends CallAbort implements Audience {
  readonly key: RepeatKey;
  /** Resolves when nothing of the call is under way any more. */
  readonly ended: Promise<void>;
  readonly #parts: SharedCallParts;
  readonly #members = new Set<Member>();
  #stage: Stage = { kind: 'held' };
  /** A client has received the whole response: without a key there is nothing to repeat any more. */
  #wasDelivered = false;
  #outcome: Promise<Outcome> | null = null;
  #copy: ((onEnd: (how: ResponseEnd) => void) => Outcome) | null = null;
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

  /** True while a further client can have the whole response. */
  get isJoinable(): boolean {
    const stage = this.#stage;
    if (stage.kind !== 'answering') return stage.kind !== 'ended' && !this.aborted;
    return stage.response === null || stage.response.isWhole;
  }

  /** The call was sent, and no client waits for its response now. */
  get isAbandoned(): boolean {
    return this.#members.size === 0 && (this.#stage.kind === 'sent' || this.#stage.kind === 'answering');
  }

  /** True while one of the clients may call. A call that was sent is finished, whoever waits for it. */
  stillValid(): boolean {
    if (this.#members.size === 0) return true;
    for (const member of this.#members) if (member.stillValid()) return true;
    return false;
  }

  /** Refuses each client whose key is not valid any more, unless the call was sent while it was. */
  recheckKeys(): void {
    for (const member of this.#members)
      if (!member.isEntitled && !member.stillValid()) member.refuse(keyEnded());
  }

  moved(to: 'upstream' | 'lane'): void {
    if (this.#stage.kind !== 'held' && this.#stage.kind !== 'sent') return;
    this.#stage = { kind: to === 'upstream' ? 'sent' : 'held' };
    for (const member of this.#members) member.isEntitled = to === 'upstream' && member.stillValid();
    if (this.#members.size === 0) this.#left();
  }

  /** One client waits for the response, and gets a copy of it. @throws Refusal `unauthenticated` when its own key has ended */
  async join({ clientGone, stillValid }: Client): Promise<Outcome> {
    let refuse = (_reason: unknown): void => {};
    const refused = new Promise<never>((_resolve, reject) => (refuse = reject));
    refused.catch(() => {});
    const member: Member = { clientGone, stillValid, isEntitled: false, refuse };
    this.#members.add(member);
    this.#cancelGrace();
    // What has passed of the response is there now; a turn of the event loop later it may be too much to be kept.
    if (this.#stage.kind === 'answering') return this.#copyFor(member);
    const gone = (): void => {
      this.#leave(member);
      // The reason itself: by it ingress distinguishes a client that left from a fault.
      refuse(clientGone.reason);
    };
    if (clientGone.aborted) gone();
    else clientGone.addEventListener('abort', gone, { once: true });
    try {
      await Promise.race([refused, this.#outcome ?? never()]);
      return this.#copyFor(member);
    } catch (failure) {
      this.#leave(member);
      if (!this.aborted || failure !== this.reason) throw failure;
      // The call was aborted because its last client, this one, left, or because the process ends while the client waits.
      throw clientGone.aborted ? clientGone.reason : endsBeforeResponse();
    } finally {
      clientGone.removeEventListener('abort', gone);
    }
  }

  #copyFor(member: Member): Outcome {
    if (!member.isEntitled && !member.stillValid()) {
      this.#leave(member);
      throw keyEnded();
    }
    if (this.#copy === null) throw new Refusal('idempotency_conflict');
    return this.#copy((how) => {
      if (how === 'complete') this.#wasDelivered = true;
      this.#leave(member);
    });
  }

  #leave(member: Member): void {
    if (this.#members.delete(member) && this.#members.size === 0) this.#left();
  }

  #left(): void {
    const stage = this.#stage;
    if (stage.kind === 'ended') return;
    if (stage.kind === 'held') {
      this.#parts.onLeft();
      this.abort();
    } else if (this.key.marker !== 'key') {
      const result = stage.kind === 'answering' ? stage.result : null;
      if (this.#wasDelivered) {
        if (result !== null) this.#end({ ...result, isKept: false });
      } else this.#abandon(stage, result);
    }
  }

  /** The last client of a call without a key has left before it had the whole response: a repeat of it may have that. */
  #abandon(stage: Stage, result: Extract<CallResult, { kind: 'answered' }> | null): void {
    if (stage.kind === 'answering' && result === null && stage.response?.isWhole !== true)
      return this.#letGo();
    if (result?.isKept === false) return this.#end(result);
    this.#parts.onAbandoned();
    if (result === null) this.#endUnlessTaken();
    else this.#end(result);
  }

  /** Without a client, the call goes on only for a repeat that has taken it, or may still come. */
  #endUnlessTaken(): void {
    this.#cancelGrace();
    this.#cancelGrace = this.#parts.clock.after(graceMs, () => {
      void this.#parts.withdraw().then((isNobodys) => {
        if (!this.isAbandoned) return;
        if (isNobodys) this.#letGo();
        else this.#endUnlessTaken();
      });
    });
  }

  #letGo(): void {
    this.abort();
    if (this.#stage.kind === 'answering') this.#stage.response?.letGo();
  }

  #answered(outcome: Outcome): void {
    const { body } = outcome;
    if (body === null || Buffer.isBuffer(body)) {
      const ending = endingOnce(outcome);
      this.#copy = (onEnd) => ({
        ...outcome,
        onEnd: (how) => {
          ending(how);
          onEnd(how);
        },
      });
      if (this.#members.size === 0) ending('client_gone');
      const whole = body ?? Buffer.alloc(0);
      this.#stage = { kind: 'answering', response: null, result: null };
      this.#bodyEnded(outcome, whole.length > this.#parts.maxKeptBytes ? 'too_large' : whole);
      return;
    }
    const response = new SharedResponse(
      { ...outcome, body },
      {
        kept: this.#parts.kept,
        goesOn: () => this.key.marker === 'key' || response.isWhole,
        onBody: (whole) => {
          if (whole === null) this.#end({ kind: 'failed', failure: null });
          else this.#bodyEnded(outcome, whole);
        },
      },
    );
    this.#copy = (onEnd) => response.copy(onEnd);
    this.#stage = { kind: 'answering', response, result: null };
    // The clients take their copies in this turn of the event loop.
    setImmediate(() => response.unclaimed());
  }

  #bodyEnded(outcome: Outcome, body: Buffer | 'too_large'): void {
    const { status, throttled, shouldRetry, upstreamFields: rawFields = outcome.fields } = outcome;
    const result = {
      kind: 'answered',
      response: body === 'too_large' ? body : { status, rawFields, body, shouldRetry },
      isKept: showsThatItRan({ status: outcome.errorStatus?.() ?? status, throttled, rawFields, body }),
    } as const;
    // Without a key, it is known only when the last client has the response, or has left, whether a repeat may come for it.
    if (this.key.marker !== 'key' && this.#members.size > 0 && this.#stage.kind === 'answering')
      this.#stage = { ...this.#stage, result };
    else
      this.#end({ ...result, isKept: result.isKept && !(this.#wasDelivered && this.key.marker !== 'key') });
  }

  #end(ended: CallResult): void {
    if (this.#stage.kind === 'ended') return;
    this.#stage = { kind: 'ended' };
    this.#cancelGrace();
    this.#parts.kept.drop();
    this.#parts.onEnded(ended);
    this.#resolveEnded();
  }
}

/** The outcome's `onEnd` for several clients: it is called for the first client whose copy ends, and not again. */
function endingOnce({ onEnd }: Outcome): Outcome['onEnd'] {
  let isOver = false;
  return (how) => {
    if (!isOver) onEnd(how);
    isOver = true;
  };
}

const never = (): Promise<never> => Promise.reject(new Refusal('idempotency_conflict'));
