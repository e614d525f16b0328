/**
 * What the steps of a call share of one simulator.
 *
 * Owns: the settings in force, and the helpers that every response needs (log entry, sending). No decisions.
 * Invariant: settings are read at the step that needs them, so that `configure` counts at once, also for a call whose
 * body is still on its way.
 */
import type { Clock, Random } from '../clock.ts';
import type { FaultQueue, FaultTarget } from '../faults.ts';
import { numberOf } from '../json.ts';
import type { LogEntry } from '../log.ts';
import { nonceIn, noFacts, type Facts, type Recorder } from '../recorder.ts';
import type { Exchange } from '../exchange.ts';
import { accountsOf, type Account } from './accounts.ts';
import type { Call } from './call.ts';
import { unitsOf } from './cost.ts';
import type { Meters } from './meters.ts';
import type { LanguageModelSettings } from './options.ts';
import type { PromptCache } from './prompt-cache.ts';
import type { CallResponse } from './refusals.ts';

export interface LanguageModelContext {
  readonly clock: Clock;
  readonly recorder: Recorder;
  readonly faults: FaultQueue;
  readonly meters: Meters;
  readonly promptCache: PromptCache;
  random: Random;
  settings: LanguageModelSettings;
  accounts: ReadonlyMap<string, Account>;
}

/** Replaces the settings of the simulator; levels stay. */
export function use(settings: LanguageModelSettings, context: LanguageModelContext): void {
  context.settings = settings;
  context.accounts = accountsOf(settings);
  context.meters.configure(settings);
}

/** Changes a part of the settings; `models` and `orgs` are merged by name. */
export function configure(part: Partial<LanguageModelSettings>, context: LanguageModelContext): void {
  const { models, orgs } = context.settings;
  use(
    {
      ...context.settings,
      ...part,
      models: { ...models, ...part.models },
      orgs: { ...orgs, ...part.orgs },
    },
    context,
  );
}

export function record(
  call: Call,
  context: LanguageModelContext,
  facts: Partial<Facts> & Pick<Facts, 'decision'>,
): LogEntry {
  const scope = `${call.account.org}|${call.family}`;
  return context.recorder.record(call.exchange, call.note, {
    ...noFacts,
    bucket: scope,
    scope,
    model: call.model,
    cost: costByDimension(call),
    nonce: nonceIn(call.body),
    ...facts,
  });
}

function costByDimension({ cost, meters }: Call): Record<string, number> {
  const units: Record<string, number> = { requests: 1, tokens: cost.tokens };
  for (const { dimension } of meters) units[dimension] = unitsOf(dimension, cost);
  return units;
}

export function send(exchange: Exchange, { status, headers, body }: CallResponse): void {
  const text = typeof body === 'string' ? body : JSON.stringify(body ?? '');
  exchange.reply(status, { 'content-type': 'application/json', ...headers }, text);
}

/** Sends a refusal and notes the wait that it asked the client for, by the more precise field. */
export function sendRefusal(
  call: Call,
  entry: LogEntry,
  refusal: CallResponse,
  context: LanguageModelContext,
): void {
  const ms = numberOf(refusal.headers['retry-after-ms']) ?? 0;
  const waitMs = ms > 0 ? ms : (numberOf(refusal.headers['retry-after']) ?? 0) * 1000;
  if (waitMs > 0) context.recorder.retryAfters.sent(entry.bucket, waitMs, context.clock.monotonic());
  send(call.exchange, refusal);
}

export function faultTarget(call: Call): FaultTarget {
  return { key: call.note.key, model: call.model, store: '', path: call.exchange.path };
}
