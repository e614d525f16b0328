/**
 * Request coalescing: impatient repeats join the call that is already held; one upstream call, an answer for each of them.
 *
 * Two things make a repeat: the same `Idempotency-Key` of the same workspace, or an SDK's own resend
 * (`x-stainless-retry-count > 0`) of an identical call. Owns: who waits for whose answer, and copying one answer to
 * several clients with the backpressure of the slowest. Refuses to own: remembering answers: once a call has ended, the
 * next one is new.
 * Keeps: the upstream call goes on while any client waits for it, and ends when none does.
 */
import { PassThrough, type Readable } from 'node:stream';
import type { AnswerEnd, Outcome } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import { Refusal } from '../errors.ts';

/** What makes a call joinable. */
export interface CoalescingKey {
  /** Digest that equal calls share: of the workspace and the idempotency key, or of the whole call. */
  readonly key: string;
  /** Digest of method, target and body: the same key with another fingerprint is refused (422). */
  readonly fingerprint: string;
  /** False for an original that only its own resends may join. */
  readonly mayJoin: boolean;
}

interface Shared {
  readonly fingerprint: string;
  readonly nobodyLeft: AbortController;
  readonly outcome: Promise<Outcome>;
  participants: number;
  /** Set when the answer begins: no repeat can join any more. */
  begun: boolean;
  /** Copies handed out, one per participant. */
  readonly readers: Set<PassThrough>;
  ends: AnswerEnd[];
}

type Start = (nobodyLeft: CallSignal) => Promise<Outcome>;

export class Coalescing {
  readonly #held = new Map<string, Shared>();

  /**
   * Runs `start`, or waits for the equal call that is already held.
   * @throws Refusal `idempotency_mismatch` same key, other call · `idempotency_conflict` its answer has already begun
   */
  run(key: CoalescingKey | null, clientGone: CallSignal, start: Start): Promise<Outcome> {
    return key === null ? start(clientGone) : this.#joinOrBegin(key, clientGone, start);
  }

  async #joinOrBegin(key: CoalescingKey, clientGone: CallSignal, start: Start): Promise<Outcome> {
    const known = this.#held.get(key.key);
    if (known === undefined || !key.mayJoin) return join(this.#begin(key, start), clientGone);
    if (known.fingerprint !== key.fingerprint) throw new Refusal('idempotency_mismatch');
    if (known.begun) {
      throw new Refusal('idempotency_conflict', {
        detail: 'A call with this key is being answered. Wait for its end before repeating it.',
      });
    }
    return join(known, clientGone);
  }

  /** The first call of its key: it is held until its answer has ended. */
  #begin(key: CoalescingKey, start: Start): Shared {
    const nobodyLeft = new AbortController();
    const shared: Shared = {
      fingerprint: key.fingerprint,
      nobodyLeft,
      outcome: start(nobodyLeft.signal),
      participants: 0,
      begun: false,
      readers: new Set(),
      ends: [],
    };
    this.#held.set(key.key, shared);
    const forget = (): void => {
      if (this.#held.get(key.key) === shared) this.#held.delete(key.key);
    };
    shared.outcome.then((outcome) => {
      shared.begun = true;
      if (Buffer.isBuffer(outcome.body) || outcome.body === null) forget();
      else outcome.body.once('close', forget);
    }, forget);
    return shared;
  }
}

/** One client waits for the shared outcome, and gets a copy of it. */
async function join(shared: Shared, clientGone: CallSignal): Promise<Outcome> {
  shared.participants += 1;
  const leave = (): void => {
    shared.participants -= 1;
    if (shared.participants === 0 && !shared.begun) shared.nobodyLeft.abort(clientGone.reason);
  };
  if (clientGone.aborted) leave();
  else clientGone.addEventListener('abort', leave, { once: true });
  try {
    const outcome = await Promise.race([shared.outcome, gone(clientGone)]);
    return copyFor(shared, outcome);
  } finally {
    clientGone.removeEventListener('abort', leave);
  }
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

/** One participant's copy of the outcome; the last one to end ends the call. */
function copyFor(shared: Shared, outcome: Outcome): Outcome {
  const { body } = outcome;
  const copy = body === null || Buffer.isBuffer(body) ? null : copyOf(shared, body);
  const expected = shared.participants;
  return {
    ...outcome,
    body: copy ?? body,
    onEnd: (how) => {
      shared.ends.push(how);
      copy?.destroy();
      if (shared.ends.length < expected) return;
      outcome.onEnd(shared.ends.find((end) => end !== 'client_gone') ?? how);
    },
  };
}

/** A reader of the shared body. The first one starts the flow; the slowest one sets the pace. */
function copyOf(shared: Shared, body: Readable): PassThrough {
  const { readers } = shared;
  const reader = new PassThrough();
  readers.add(reader);
  const resume = (): void => {
    if ([...readers].every((other) => !other.writableNeedDrain)) body.resume();
  };
  reader.on('drain', resume);
  reader.on('close', () => {
    readers.delete(reader);
    if (readers.size === 0) body.destroy();
    else resume();
  });
  if (readers.size > 1) return reader;
  body.on('data', (chunk: Buffer) => {
    let full = false;
    for (const each of readers) full = !each.write(chunk) || full;
    if (full) body.pause();
  });
  body.on('end', () => readers.forEach((each) => each.end()));
  body.on('error', (error: Error) => readers.forEach((each) => each.destroy(error)));
  // Whoever looked into the body before left it paused.
  body.resume();
  return reader;
}
