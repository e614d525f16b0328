/** The clients of the gate: each makes one call at one replica, and says how it ended. */
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import type { Gateway } from '../cluster/fleet.ts';
import { exchange } from '../cluster/upstream.ts';
import type { Lane } from './upstream.ts';

/** How a call ended for its client. */
export type Fate =
  /** `stamp`: which request of the upstream answered it. */
  | { readonly kind: 'answered'; readonly stamp: string }
  /** The gateway refused it. `retryAfterMs`: its own field, or a second where it has none. */
  | {
      readonly kind: 'refused';
      readonly code: string;
      readonly heldBy: string;
      readonly retryAfterMs: number;
    }
  /** The client hung up, as planned. */
  | { readonly kind: 'left' }
  /** The connection broke, or a response was not the upstream's whole one. */
  | { readonly kind: 'broken'; readonly words: string }
  /** Neither a response nor a refusal came within the wait and a minute. */
  | { readonly kind: 'unanswered' };

export interface Call {
  readonly nonce: string;
  readonly lane: Lane;
  readonly isStream: boolean;
  readonly idempotencyKey: string | null;
  /** Hangs up after so many milliseconds. */
  readonly leavesAfterMs: number | null;
}

export interface Ended extends Call {
  readonly fate: Fate;
  /** Index of the replica that it was last sent to. */
  readonly replica: number;
  /** Monotonic milliseconds of its last sending. */
  readonly sentAt: number;
  /** Its connection broke, and it was made again. */
  readonly wasMadeAgain: boolean;
}

export interface Sending {
  readonly gateways: readonly Gateway[];
  readonly replica: number;
  readonly key: string;
  readonly waitSeconds: number;
}

/**
 * Makes the call. A replica that takes no connection is passed over; a call with an idempotency key whose connection breaks is made
 * again at the next replica, as SDKs do; and a refusal of a moment is followed.
 */
export async function makeCall(call: Call, { gateways, replica, key, waitSeconds }: Sending): Promise<Ended> {
  const patience = AbortSignal.timeout(waitSeconds * 1_000 + 60_000);
  const leaving = call.leavesAfterMs === null ? null : AbortSignal.timeout(call.leavesAfterMs);
  const signal = leaving === null ? patience : AbortSignal.any([patience, leaving]);
  let wasMadeAgain = false;
  let at = replica;
  for (;;) {
    const sentAt = systemClock.monotonic();
    const url = gateways[at % gateways.length]?.url ?? '';
    const fate = await attempt(call, { url, key, waitSeconds, signal });
    const ended = { ...call, replica: at % gateways.length, sentAt, wasMadeAgain };
    if (leaving?.aborted === true) return { ...ended, fate: { kind: 'left' } };
    if (patience.aborted) return { ...ended, fate: { kind: 'unanswered' } };
    const next = nextOf(fate, call);
    if (next === 'end') return { ...ended, fate };
    if (next === 'next replica') at += 1;
    if (fate.kind === 'broken' && fate.words !== 'ECONNREFUSED') wasMadeAgain = true;
    await pause(fate.kind === 'refused' ? fate.retryAfterMs : 200);
  }
}

/** Refusals of a moment: no Redis, a machine that is too busy, a repeat that comes while its call ends. */
const followed = new Set(['limiter_unavailable', 'overloaded', 'idempotency_conflict']);

/** What a client does after this. */
function nextOf(fate: Fate, { idempotencyKey }: Call): 'end' | 'next replica' | 'same replica' {
  switch (fate.kind) {
    case 'refused':
      return followed.has(fate.code) ? 'same replica' : 'end';
    case 'broken':
      return fate.words === 'ECONNREFUSED' || idempotencyKey !== null ? 'next replica' : 'end';
    case 'answered':
    case 'left':
    case 'unanswered':
      return 'end';
  }
}

interface Attempt {
  readonly url: string;
  readonly key: string;
  readonly waitSeconds: number;
  readonly signal: AbortSignal;
}

async function attempt(call: Call, { url, key, waitSeconds, signal }: Attempt): Promise<Fate> {
  const { lane, nonce, isStream, idempotencyKey } = call;
  const ended = await exchange({
    url: `${url}/via/${lane}/${isStream ? 'stream' : 'work'}`,
    method: 'POST',
    agent: false,
    signal,
    headers: {
      'sluice-key': key,
      // Equal calls are equal in every field.
      'x-nonce': idempotencyKey ?? nonce,
      prefer: `wait=${waitSeconds}`,
      'content-type': 'application/json',
      ...(idempotencyKey === null ? {} : { 'idempotency-key': idempotencyKey }),
    },
    body: JSON.stringify({ work: idempotencyKey ?? nonce }),
  });
  if (ended.kind === 'broken') return ended;
  if (ended.kind === 'refused') return { ...ended, retryAfterMs: ended.retryAfterMs ?? 1_000 };
  const { status, text } = ended;
  const stamp = /[\w-]+#\d+/.exec(text)?.[0];
  const isWhole = status === 200 && (!isStream || text.endsWith('data: [DONE]\n\n'));
  return stamp === undefined || !isWhole
    ? { kind: 'broken', words: `${status}: ${text.slice(0, 80)}` }
    : { kind: 'answered', stamp };
}
