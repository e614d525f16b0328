/**
 * What REST and GraphQL share of one store simulator.
 *
 * Owns: types and the two helpers that every response needs (fields, latency). No decisions.
 */
import type { Clock, Random } from '../clock.ts';
import type { FaultQueue, FaultTarget } from '../faults.ts';
import type { LogEntry } from '../log.ts';
import { noFacts, type ArrivalNote, type Facts, type Recorder } from '../recorder.ts';
import type { Exchange, ReplyHeaders } from '../exchange.ts';
import type { IdempotencyKeys } from './idempotency.ts';
import type { CommerceSettings } from './options.ts';
import type { Resources } from './resources.ts';
import type { LastMinute, StoreBuckets } from './stores.ts';

export interface CommerceContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: CommerceSettings;
  readonly recorder: Recorder;
  readonly faults: FaultQueue;
  readonly buckets: StoreBuckets;
  readonly resources: Resources;
  readonly keys: IdempotencyKeys;
  readonly lastMinute: LastMinute;
}

/** A call of a known app to a store in good standing. */
export interface StoreCall {
  readonly exchange: Exchange;
  readonly note: ArrivalNote;
  readonly store: string;
  readonly app: string;
  /** `X-Request-Id`, API version, shop and app ids. */
  readonly fields: Record<string, string>;
}

export function record(
  call: StoreCall,
  context: CommerceContext,
  bucket: string,
  facts: Partial<Facts> & Pick<Facts, 'decision'>,
): LogEntry {
  const scope = `${call.store}|${call.app}`;
  return context.recorder.record(call.exchange, call.note, {
    ...noFacts,
    bucket,
    scope,
    store: call.store,
    ...facts,
  });
}

export function send(exchange: Exchange, status: number, headers: ReplyHeaders, body: string): void {
  exchange.reply(status, { 'content-type': 'application/json; charset=utf-8', ...headers }, body);
}

export function latencyMs({ random, settings }: CommerceContext): number {
  const { minMs, maxMs } = settings.latency;
  return minMs + random.next() * (maxMs - minMs);
}

export function faultTarget(call: StoreCall): FaultTarget {
  return { key: call.note.key, model: '', store: call.store, path: call.exchange.path };
}

/** The API gives up on its own work after this long (504); the work may still be done. */
export const maxWorkMs = 10_000;
