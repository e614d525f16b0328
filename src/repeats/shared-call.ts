/**
 * One call and all clients that wait for its response: the first one and those whose repeats have joined.
 *
 *   held ⇄ sent ──▶ answering ──▶ ended
 *
 * Owns: whether the call goes on when its clients leave, and giving each client, and the store of kept responses, every byte.
 * Does not own: which calls are repeats (`repeats.ts`).
 * Keeps: a call that waits ends when its last client leaves; a call that was sent and carries a key is finished without clients; a
 * call that was sent and that an SDK will repeat goes on for `graceMs` without a client, for as long as its response can be given
 * from the first byte. While a response is kept whole, it is read at the pace of the fastest client, so that one whose connection is
 * dead does not hold up its own repeat; above that bound, at the pace of the slowest.
 */
import { finished, PassThrough, Readable } from 'node:stream';
import type { Audience, Outcome, ResponseEnd } from '../call.ts';
import type { Clock } from '../clock.ts';
import { keyEnded, Refusal } from '../errors.ts';
import type { KeptBody } from './kept-responses.ts';
import { noResponse, showsThatItRan, type CallResult, type RepeatKey } from './repeat.ts';

/** SDKs repeat a call after up to 8 s (openai, anthropic, groq). Milliseconds. */
const graceMs = 10_000;

/** A client that waits for the response. */
export interface Client {
  readonly clientGone: AbortSignal;
  /** False once the API key with which this client called is not valid any more. */
  readonly stillValid: () => boolean;
}

interface Member extends Client {
  /** The call was sent while this client waited with a valid key: it gets the response, as the client of any other call would. */
  isEntitled: boolean;
  /** Ends this client's waiting. */
  readonly refuse: (reason: unknown) => void;
}

export interface SharedCallParts {
  readonly clock: Clock;
  readonly key: RepeatKey;
  /** Keeps a response while it streams. */
  readonly kept: KeptBody;
  /** Called when the last client has left while the call waited, or the call goes back into its lane without one. */
  readonly onLeft: () => void;
  /** Called when the last client of a call without a key has left after the call had been sent: a repeat may have its response. */
  readonly onAbandoned: () => void;
  /** Resolves with true when no repeat has taken the call, and none can any more. Never rejects. */
  readonly withdraw: () => Promise<boolean>;
  readonly onEnded: (ended: CallResult) => void;
}

export class SharedCall implements Audience {
  readonly #ending = new AbortController();
  readonly signal = this.#ending.signal;
  readonly key: RepeatKey;
  readonly #parts: SharedCallParts;
  readonly #members = new Set<Member>();
  readonly #readers = new Set<PassThrough>();
  readonly #made = Promise.withResolvers<void>();
  readonly #over = Promise.withResolvers<void>();
  /** Resolves when nothing of the call is under way any more. */
  readonly ended = this.#over.promise;
  #stage: 'held' | 'sent' | 'answering' | 'ended' = 'held';
  #outcome: Outcome | null = null;
  /** The body, where it streams. */
  #body: Readable | null = null;
  /** What a call without a key came to, while clients still read its response: a repeat may come for it. */
  #result: Extract<CallResult, { kind: 'answered' }> | null = null;
  /** A client has received the whole response: without a key there is nothing to repeat any more. */
  #wasDelivered = false;
  #cancelGrace = (): void => {};

  constructor(parts: SharedCallParts) {
    this.#parts = parts;
    this.key = parts.key;
  }

  /** `run` makes the response. */
  begin(run: (audience: Audience) => Promise<Outcome>): void {
    const made = run(this).then(
      (outcome) => this.#answered(outcome),
      (failure: unknown) => {
        this.#end({ kind: 'failed', failure });
        throw failure;
      },
    );
    this.#made.resolve(made);
    // Also where no client has joined yet.
    this.#made.promise.catch(() => {});
  }

  /** True while a further client can have the whole response. */
  get isJoinable(): boolean {
    if (this.#stage === 'answering') return this.#result === null && this.#parts.kept.pieces !== null;
    return this.#stage !== 'ended' && !this.signal.aborted;
  }

  /** The call was sent, and no client waits for its response now. */
  get isAbandoned(): boolean {
    return this.#members.size === 0 && (this.#stage === 'sent' || this.#stage === 'answering');
  }

  /** The process ends: so does the call, for all its clients. */
  cut(): void {
    this.#ending.abort();
  }

  /** True while one of the clients may call. A call that was sent is finished, whoever waits for it. */
  stillValid(): boolean {
    return this.#members.size === 0 || this.#members.values().some((member) => member.stillValid());
  }

  /** Refuses each client whose key is not valid any more, unless the call was sent while it was. */
  recheckKeys(): void {
    for (const member of this.#members)
      if (!member.isEntitled && !member.stillValid()) member.refuse(keyEnded());
  }

  moved(to: 'upstream' | 'lane'): void {
    if (this.#stage !== 'held' && this.#stage !== 'sent') return;
    this.#stage = to === 'upstream' ? 'sent' : 'held';
    for (const member of this.#members) member.isEntitled = to === 'upstream' && member.stillValid();
    if (this.#members.size === 0) this.#left();
  }

  /** One client waits for the response, and gets a copy of it. @throws Refusal `unauthenticated` when its own key has ended */
  async join({ clientGone, stillValid }: Client): Promise<Outcome> {
    const { promise: refused, reject: refuse } = Promise.withResolvers<never>();
    const member: Member = { clientGone, stillValid, refuse, isEntitled: false };
    this.#members.add(member);
    this.#cancelGrace();
    // What has passed of the response is there now; a turn of the event loop later it may be too much to be kept.
    if (this.#stage === 'answering') return this.#copyFor(member);
    const gone = (): void => {
      this.#leave(member);
      // The reason itself: by it ingress distinguishes a client that left from a fault.
      refuse(clientGone.reason);
    };
    if (clientGone.aborted) gone();
    else clientGone.addEventListener('abort', gone, { once: true });
    try {
      await Promise.race([refused, this.#made.promise]);
      return this.#copyFor(member);
    } catch (failure) {
      this.#leave(member);
      // The process ends while the client waits: the repeat may come to another replica.
      if (this.signal.aborted && failure === this.signal.reason)
        throw new Refusal('draining', { retryInMs: 1_000 });
      throw failure;
    } finally {
      clientGone.removeEventListener('abort', gone);
    }
  }

  #copyFor(member: Member): Outcome {
    const outcome = this.#outcome;
    if (outcome === null) throw noResponse('too large to be kept');
    let reader: PassThrough | null = null;
    const onEnd = (how: ResponseEnd): void => {
      reader?.destroy();
      if (how === 'complete') this.#wasDelivered = true;
      this.#leave(member);
    };
    if (this.#body === null) return { ...outcome, onEnd };
    const body = (reader = new PassThrough());
    this.#readers.add(body);
    // A stream error without a listener would end the process; the copy's reader may not listen yet.
    body.on('error', () => {}).on('drain', () => this.#pace());
    body.on('close', () => {
      this.#readers.delete(body);
      this.#pace();
    });
    for (const piece of this.#parts.kept.pieces ?? []) body.write(piece);
    return { ...outcome, body, onEnd };
  }

  #leave(member: Member): void {
    if (this.#members.delete(member) && this.#members.size === 0) this.#left();
  }

  #left(): void {
    if (this.#stage === 'ended') return;
    if (this.#stage === 'held') {
      this.#parts.onLeft();
      return this.cut();
    }
    if (this.key.marker === 'key') return;
    const result = this.#result;
    if (result !== null && (this.#wasDelivered || !result.isKept))
      return this.#end({ ...result, isKept: false });
    if (result === null && !this.isJoinable) return this.#letGo();
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
    this.cut();
    this.#body?.destroy();
  }

  #answered(outcome: Outcome): void {
    const { body } = outcome;
    const { kept } = this.#parts;
    this.#stage = 'answering';
    this.#outcome = outcome;
    if (!(body instanceof Readable)) {
      // All of it is here: the attempt is over, however slowly clients read.
      outcome.onEnd('complete');
      const bytes = body ?? Buffer.alloc(0);
      return this.#bodyEnded(outcome, bytes.length > kept.maxBytes ? 'too_large' : bytes);
    }
    this.#body = body;
    body.on('data', (chunk: Buffer) => {
      kept.append(chunk);
      for (const each of this.#readers) each.write(chunk);
      this.#pace();
    });
    finished(body, { writable: false }, (error) => {
      for (const each of this.#readers) {
        if (error) each.destroy(error);
        else each.end();
      }
      outcome.onEnd(error ? 'upstream_cut' : 'complete');
      if (error) this.#end({ kind: 'failed', failure: null });
      else this.#bodyEnded(outcome, kept.pieces === null ? 'too_large' : Buffer.concat(kept.pieces));
    });
    // Reading the start of the body for learning has left it paused. The clients take their copies before it flows.
    body.resume();
  }

  /** Pauses the body while its clients do not keep up. */
  #pace(): void {
    const isFull = (reader: PassThrough): boolean => reader.writableNeedDrain;
    const readers = [...this.#readers];
    const isWhole = this.#parts.kept.pieces !== null;
    const mustWait = readers.length > 0 && (isWhole ? readers.every(isFull) : readers.some(isFull));
    if (mustWait) this.#body?.pause();
    else this.#body?.resume();
  }

  #bodyEnded(outcome: Outcome, body: Buffer | 'too_large'): void {
    const { status, throttled, shouldRetry, upstreamFields: rawFields = outcome.fields } = outcome;
    const isKept = !throttled && showsThatItRan(outcome.errorStatus?.() ?? status, rawFields, body);
    const response = body === 'too_large' ? body : { status, rawFields, body, shouldRetry };
    const result = { kind: 'answered', response, isKept } as const;
    // Without a key, it is known only when the last client has the response, or has left, whether a repeat may come for it.
    if (this.key.marker !== 'key' && this.#members.size > 0) this.#result = result;
    else this.#end(result);
  }

  #end(ended: CallResult): void {
    if (this.#stage === 'ended') return;
    this.#stage = 'ended';
    this.#cancelGrace();
    this.#parts.kept.drop();
    this.#parts.onEnded(ended);
    this.#over.resolve();
  }
}
