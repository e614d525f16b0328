/** The clients of the soak: what they send, when they repeat, when they hang up. Every draw is of one seeded source. */
import { Agent } from 'node:http';
import type { Random } from '../../src/clock.ts';
import { makeCall, type Attempt, type Call, type Ended } from '../fleet/calls.ts';
import type { Gateway } from '../fleet/gateways.ts';
import type { Upstream } from '../fleet/upstream.ts';

/** Of each seven calls. `serial`: of a workspace whose calls are sent one after the other. */
const kinds: readonly Omit<Call, 'nonce'>[] = [
  { lane: 'open' },
  { lane: 'open' },
  { lane: 'open', method: 'GET' },
  { lane: 'open', isStream: true },
  { lane: 'serial' },
  { lane: 'open', idempotencyKey: 'its nonce' },
  { lane: 'serial', reserves: true },
];
const waitSeconds = 120;
/** A refusal with a time loses no call; one that has been refused for so long is given up, and counts as lost. Milliseconds. */
const maxMs = 600_000;
const shareLeaving = 0.08;

export interface ClientParts {
  /** API keys. */
  readonly keys: Readonly<Record<Call['lane'], string>>;
  readonly random: Random;
  /** One of the replicas that take calls. */
  readonly pick: () => Gateway;
}

export class Clients {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: Infinity, timeout: 0 });
  readonly #parts: ClientParts;
  readonly #calls: Promise<Ended>[] = [];

  constructor(parts: ClientParts) {
    this.#parts = parts;
  }

  /** Sends one more call; a crowd is many of these. */
  send(): void {
    const { random, keys, pick: to } = this.#parts;
    const kind = kinds[Math.floor(random.next() * kinds.length)] ?? { lane: 'open' };
    const leavesAfterMs = random.next() < shareLeaving ? Math.round(random.next() * 1_500) : undefined;
    const nonce = `soak-${this.#calls.length}`;
    const call = {
      ...kind,
      nonce,
      leavesAfterMs,
      idempotencyKey: kind.idempotencyKey && nonce,
    };
    const sending = { to, key: keys[call.lane], waitSeconds, maxMs, agent: this.#agent };
    this.#calls.push(makeCall(call, { ...sending, again: (attempt) => this.#again(call, attempt) }));
  }

  /** Resolves when every call has ended. */
  async ended(): Promise<readonly Ended[]> {
    const ended = await Promise.all(this.#calls);
    this.#agent.destroy();
    return ended;
  }

  #again(call: Call, { at, ended }: Attempt): number | null {
    switch (ended.kind) {
      case 'response':
        return null;
      case 'refused':
        // A refusal with a time is followed, as SDKs do; so is a repeat that comes while its call is answered.
        return ended.retryAfterMs ?? (ended.code === 'idempotency_conflict' ? 300 : null);
      case 'broken':
        if (at.wasKilled) return isRepeatable(call) || ended.words === 'ECONNREFUSED' ? 100 : null;
        if (ended.words === 'ECONNREFUSED') return 100;
        return ended.isStale ? 0 : null;
    }
  }
}

/** Making it again does no harm, by method or by idempotency key. */
const isRepeatable = ({ method, idempotencyKey }: Call): boolean =>
  method === 'GET' || idempotencyKey !== undefined;

/** Calls of clients that stayed to which nothing excuses what happened, in words. */
export function lost(calls: readonly Ended[], { executed, faulted }: Upstream): readonly string[] {
  const stamps = new Set(executed.map(({ nonce, serial }) => `${nonce}#${serial}`));
  const isKept = ({ nonce, fate, at }: Ended): boolean => {
    if (fate.kind === 'answered') return stamps.has(fate.stamp) && fate.stamp.startsWith(`${nonce}#`);
    if (fate.kind !== 'ended') return fate.kind === 'left';
    // The upstream is to blame for what it answered or cut; nobody knows what a killed replica did.
    if (fate.by.kind === 'broken') return at.wasKilled || (fate.by.isCut && faulted.has(nonce));
    return faulted.has(nonce) && (fate.by.kind === 'refused' || fate.by.status !== 200);
  };
  return calls
    .filter((call) => !isKept(call))
    .map((call) => `${call.nonce}: ${call.fate.kind}: ${trailOf(call)}`);
}

/** Calls that the upstream did the work of more often than killed replicas and its own troubles explain. */
export function twice(calls: readonly Ended[], { executed, faulted }: Upstream): readonly string[] {
  const times = Map.groupBy(executed, ({ nonce }) => nonce);
  return calls.flatMap((call) => {
    const { nonce, attempts } = call;
    const killed = attempts.filter(({ at, ended }) => ended.kind === 'broken' && at.wasKilled).length;
    const excused = isRepeatable(call) ? killed + (faulted.has(nonce) ? 1 : 0) : 0;
    const made = times.get(nonce)?.length ?? 0;
    return made > 1 + excused ? [`${nonce}: made ${made} times: ${trailOf(call)}`] : [];
  });
}

/** The last attempts of a call. */
const trailOf = ({ attempts }: Ended): string =>
  attempts
    .slice(-6)
    .map(({ at, ended }) => `${at.pid}${at.isAlive() ? '' : ' (ended)'} ${JSON.stringify(ended)}`)
    .join(' · ');
