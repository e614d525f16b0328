/** A client's call, followed over refusals and broken connections to its end. */
import type { Agent } from 'node:http';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import type { Gateway } from './gateways.ts';
import { exchange, type Exchange } from './http.ts';
import type { Lane } from './upstream.ts';

export interface Call {
  readonly nonce: string;
  readonly lane: Lane;
  readonly method?: 'GET' | 'POST';
  readonly isStream?: boolean;
  readonly idempotencyKey?: string | undefined;
  /** Does not wait with a connection open, but comes back with its ticket. */
  readonly reserves?: true;
  /** Hangs up after so many milliseconds. */
  readonly leavesAfterMs?: number | undefined;
}

/** How a call ended for its client. */
export type Fate =
  /** `stamp`: which request of the upstream answered it. */
  | { readonly kind: 'answered'; readonly stamp: string }
  /** The client hung up, as planned. */
  | { readonly kind: 'left' }
  /** An attempt got neither a response nor a refusal in its wait and a minute, or all of them together took too long. */
  | { readonly kind: 'unanswered' }
  /** The last exchange is its end: another response than a whole one, a refusal, a broken connection. */
  | { readonly kind: 'ended'; readonly by: Exchange };

export interface Attempt {
  readonly at: Gateway;
  /** Monotonic milliseconds. */
  readonly sentAt: number;
  readonly ended: Exchange;
}

export interface Ended extends Call {
  readonly fate: Fate;
  readonly attempts: readonly Attempt[];
  /** The last one. */
  readonly at: Gateway;
  readonly sentAt: number;
}

export interface Sending {
  /** The replica of the next attempt. */
  readonly to: (before: readonly Attempt[]) => Gateway;
  /** Milliseconds after which a client that got this tries again; `null` = it does not. */
  readonly again: (attempt: Attempt) => number | null;
  readonly key: string;
  readonly waitSeconds: number;
  /** For all attempts together, milliseconds. */
  readonly maxMs: number;
  /** Left out, each attempt has a connection of its own. */
  readonly agent?: Agent;
}

/** An attempt without a response for so long beyond its wait is unanswered. Milliseconds. */
const patienceMs = 60_000;

export async function makeCall(call: Call, sending: Sending): Promise<Ended> {
  const leaving = call.leavesAfterMs === undefined ? null : AbortSignal.timeout(call.leavesAfterMs);
  const startedAt = systemClock.monotonic();
  const attempts: Attempt[] = [];
  for (;;) {
    const patience = AbortSignal.timeout(sending.waitSeconds * 1_000 + patienceMs);
    const signal = leaving === null ? patience : AbortSignal.any([patience, leaving]);
    const [at, sentAt] = [sending.to(attempts), systemClock.monotonic()];
    const attempt = {
      at,
      sentAt,
      ended: await exchangeOf(call, at, { ...sending, signal, last: attempts.at(-1) }),
    };
    attempts.push(attempt);
    const stamp = stampOf(call, attempt.ended);
    const ended = { ...call, attempts, at, sentAt };
    if (leaving?.aborted === true) return { ...ended, fate: { kind: 'left' } };
    const isLate = systemClock.monotonic() - startedAt > sending.maxMs;
    if (patience.aborted || (isLate && stamp === null)) return { ...ended, fate: { kind: 'unanswered' } };
    if (stamp !== null) return { ...ended, fate: { kind: 'answered', stamp } };
    const againMs = sending.again(attempt);
    if (againMs === null) return { ...ended, fate: { kind: 'ended', by: attempt.ended } };
    await pause(againMs);
  }
}

interface Next extends Sending {
  readonly signal: AbortSignal;
  readonly last: Attempt | undefined;
}

function exchangeOf(
  { lane, nonce, method = 'POST', isStream = false, idempotencyKey, reserves }: Call,
  { url }: Gateway,
  { key, waitSeconds, agent, signal, last }: Next,
): Promise<Exchange> {
  const ticket = last?.ended.kind === 'refused' ? last.ended.ticket : null;
  // Equal calls are equal in every field.
  const name = idempotencyKey ?? nonce;
  return exchange({
    url: `${url}/via/${lane}/${isStream ? 'stream' : 'work'}`,
    method,
    agent: agent ?? false,
    signal,
    headers: {
      'sluice-key': key,
      'x-nonce': name,
      prefer: reserves === true ? 'reserve, wait=1' : `wait=${waitSeconds}`,
      ...(ticket === null ? {} : { 'sluice-ticket': ticket }),
      ...(idempotencyKey === undefined ? {} : { 'idempotency-key': idempotencyKey }),
      ...(method === 'GET' ? {} : { 'content-type': 'application/json' }),
    },
    ...(method === 'GET' ? {} : { body: JSON.stringify({ work: name }) }),
  });
}

/** Which request of the upstream answered; `null` = this is no whole response of it. */
function stampOf({ isStream = false }: Call, ended: Exchange): string | null {
  if (ended.kind !== 'response' || ended.status !== 200) return null;
  if (isStream && !ended.text.endsWith('data: [DONE]\n\n')) return null;
  return /[\w-]+#\d+/.exec(ended.text)?.[0] ?? null;
}

export function inWords(fate: Fate): string {
  if (fate.kind === 'answered') return `answered by ${fate.stamp}`;
  if (fate.kind !== 'ended') return fate.kind;
  const { by } = fate;
  switch (by.kind) {
    case 'response':
      return `broken: ${by.status}: ${by.text.slice(0, 80)}`;
    case 'refused':
      return `refused: ${by.code} ${by.heldBy}`.trim();
    case 'broken':
      return `broken: ${by.words}`;
  }
}
