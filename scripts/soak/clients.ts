/** The clients of the soak: what they send, when they repeat, when they hang up. Every draw is of one seeded source. */
import { Agent } from 'node:http';
import type { Random } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { exchange, type Exchange } from '../cluster/upstream.ts';
import type { Fate, Ledger } from './ledger.ts';
import type { Replica, Replicas } from './replicas.ts';

/** `held`: of a workspace whose calls are sent one after the other · `keyed`: with an idempotency key. */
const kinds = ['plain', 'plain', 'read', 'stream', 'held', 'keyed'] as const;
type Kind = (typeof kinds)[number];

interface Call {
  readonly nonce: string;
  readonly kind: Kind;
  /** Hangs up after so many milliseconds. */
  readonly leavesAfterMs: number | null;
}

export interface ClientParts {
  readonly replicas: Replicas;
  readonly ledger: Ledger;
  readonly random: Random;
  /** API keys. */
  readonly keys: { readonly open: string; readonly held: string };
}

const waitSeconds = 120;
/** A call that no attempt has ended after so long is lost: it is held beyond its wait. Milliseconds. */
const maxAttemptMs = waitSeconds * 1_000 + 60_000;
/** A refusal with a time loses no call; one that has been refused for so long is given up, and counts as lost. Milliseconds. */
const maxMs = 600_000;
/** Responses later than this are counted apart, milliseconds. */
const lateMs = maxAttemptMs;
const shareLeaving = 0.08;

interface Tried {
  readonly call: Call;
  readonly replica: Replica;
  readonly isRepeatable: boolean;
}

/** What an ending means: the call has ended, or the client repeats it after so many milliseconds. */
type Next = Fate | { readonly kind: 'again'; readonly afterMs: number };

function inWords(ending: Exchange): string {
  switch (ending.kind) {
    case 'response':
      return String(ending.status);
    case 'refused':
      return `${ending.status} ${ending.code}, again in ${ending.retryAfterMs ?? '?'} ms`;
    case 'broken':
      return `${ending.words}${ending.isStale ? ' on a kept connection' : ''}${ending.isCut ? ' inside the response' : ''}`;
  }
}

const again = (afterMs: number): Next => ({ kind: 'again', afterMs });
const isWhole = (kind: Kind, text: string): boolean =>
  kind === 'stream' ? text.endsWith('data: [DONE]\n\n') : text === 'done';

export class Clients {
  readonly #parts: ClientParts;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: Infinity, timeout: 0 });
  readonly #open = new Set<Promise<void>>();
  #sent = 0;
  /** Kept connections that were closed in the moment of a call, which was sent again. */
  stale = 0;
  /** Refusals of the gateway that were followed. */
  refused = 0;
  /** Calls that were answered late, because they had been refused, with a time, and came again. */
  late = 0;
  /** The longest way of a call of the serialized workspace from its sending to its response, milliseconds. */
  maxHeldMs = 0;

  constructor(parts: ClientParts) {
    this.#parts = parts;
  }

  /** Sends one more call; a crowd is many of these. */
  send(): void {
    const { random } = this.#parts;
    const kind = kinds[Math.floor(random.next() * kinds.length)] ?? 'plain';
    const leavesAfterMs = random.next() < shareLeaving ? Math.round(random.next() * 1_500) : null;
    this.#sent += 1;
    const run = this.#run({ nonce: `soak-${this.#sent}`, kind, leavesAfterMs });
    this.#open.add(run);
    void run.finally(() => this.#open.delete(run));
  }

  /** Resolves when every call has ended. */
  async settled(): Promise<void> {
    await Promise.all(this.#open);
    this.#agent.destroy();
  }

  async #run(call: Call): Promise<void> {
    const { replicas, ledger, random } = this.#parts;
    const startedAt = performance.now();
    const { nonce, kind, leavesAfterMs } = call;
    const isRepeatable = kind === 'read' || kind === 'keyed';
    const leaving = leavesAfterMs === null ? null : AbortSignal.timeout(leavesAfterMs);
    /** What happened, the last few. */
    const trail: string[] = [];
    let killedAttempts = 0;
    let fate: Fate | null = null;
    while (performance.now() - startedAt < maxMs) {
      const replica = replicas.pick(random);
      const tooLate = AbortSignal.timeout(maxAttemptMs);
      const signal = leaving === null ? tooLate : AbortSignal.any([leaving, tooLate]);
      const ending = await this.#attempt(call, replica, signal);
      if (leaving?.aborted === true) {
        fate = { kind: 'left' };
        break;
      }
      if (tooLate.aborted) {
        const made = ledger.of(nonce).times;
        fate = { kind: 'lost', words: `held beyond its wait at ${replica.name}, made ${made} times` };
        break;
      }
      trail.push(`${replica.name}: ${inWords(ending)}`);
      if (ending.kind === 'broken' && replica.wasKilled) killedAttempts += 1;
      const next = this.#next(ending, { call, replica, isRepeatable });
      if (next.kind !== 'again') {
        fate = next;
        break;
      }
      await pause(next.afterMs);
    }
    fate ??= { kind: 'lost', words: `refused for ${maxMs / 1_000} s` };
    if (fate.kind === 'lost')
      fate = { ...fate, words: `${kind}: ${fate.words}: ${trail.slice(-6).join(' · ')}` };
    if (fate.kind === 'answered' && performance.now() - startedAt > lateMs) this.late += 1;
    if (kind === 'held' && fate.kind === 'answered')
      this.maxHeldMs = Math.max(this.maxHeldMs, performance.now() - startedAt);
    ledger.ended({ nonce, fate, isRepeatable, killedAttempts });
  }

  #attempt({ nonce, kind }: Call, { gateway: { url } }: Replica, signal: AbortSignal): Promise<Exchange> {
    const { keys } = this.#parts;
    const path =
      kind === 'held' ? '/via/serial/work' : kind === 'stream' ? '/via/open/stream' : '/via/open/work';
    const method = kind === 'read' ? 'GET' : 'POST';
    const headers = {
      'sluice-key': kind === 'held' ? keys.held : keys.open,
      'x-nonce': nonce,
      prefer: `wait=${waitSeconds}`,
      ...(kind === 'keyed' ? { 'idempotency-key': nonce } : {}),
    };
    const body = method === 'POST' ? { body: '{"work":1}' } : {};
    return exchange({ url: `${url}${path}`, method, headers, ...body, agent: this.#agent, signal });
  }

  #next(ending: Exchange, { call: { nonce, kind }, replica, isRepeatable }: Tried): Next {
    switch (ending.kind) {
      case 'response':
        if (ending.status === 200 && isWhole(kind, ending.text)) return { kind: 'answered' };
        if (ending.status === 200)
          return { kind: 'lost', words: `a response of ${ending.text.length} characters` };
        return { kind: 'failed', words: String(ending.status) };
      case 'refused':
        // A refusal with a time is followed, as SDKs do; so is a repeat that comes while its call is answered.
        if (ending.retryAfterMs !== null || ending.code === 'idempotency_conflict') {
          this.refused += 1;
          return again(ending.retryAfterMs ?? 300);
        }
        return { kind: 'failed', words: `${ending.status} ${ending.code}` };
      case 'broken':
        if (replica.wasKilled) return isRepeatable ? again(100) : { kind: 'killed' };
        if (ending.words === 'ECONNREFUSED') return again(100);
        if (ending.isStale) {
          this.stale += 1;
          return again(0);
        }
        if (ending.isCut && this.#parts.ledger.isExcused(nonce)) return { kind: 'failed', words: 'cut' };
        return {
          kind: 'lost',
          words: `${inWords(ending)}, of a replica that ${replica.isTaking ? 'takes calls' : 'ends'}`,
        };
    }
  }
}
