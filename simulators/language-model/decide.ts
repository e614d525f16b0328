/**
 * Decides over a call to a known model: quota, overload, limits, then the work.
 *
 * Owns: the order of these steps and the head of an admitted response. Does not own: arithmetic (`meters.ts`), texts of
 * refusals (`refusals.ts`), the work (`work.ts`).
 * Invariant: from the quota to the charge is one instant of the clock, without `await`; each decision is in the log.
 */
import type { FaultKind } from '../faults.ts';
import type { LogEntry } from '../log.ts';
import type { Account } from './accounts.ts';
import type { Admitted, Call } from './call.ts';
import { faultTarget, record, send, sendRefusal, type LanguageModelContext } from './context.ts';
import { answeredByFault } from './faults.ts';
import { limitFields } from './fields.ts';
import type { Verdict } from './meters.ts';
import type { QuotaState } from './options.ts';
import * as refusals from './refusals.ts';
import { work } from './work.ts';

const afterLimits: ReadonlySet<FaultKind> = new Set<FaultKind>([
  'no-ratelimit-headers',
  'clock-skew',
  'late-429',
  '500',
  '502-html',
  '503',
  'slow',
  'reset-before-response',
  'reset-mid-stream',
  'hang',
  'stream-error',
]);

export async function decide(call: Call, context: LanguageModelContext): Promise<void> {
  const { settings, clock, meters } = context;
  const quota = quotaOf(call.account, context);
  if (quota !== 'ok') {
    record(call, context, { decision: 'quota' });
    send(call.exchange, refusals.outOfQuota(quota, settings, call.requestId));
    return;
  }
  if (settings.overload !== null) {
    const entry = record(call, context, { decision: 'overloaded' });
    sendRefusal(call, entry, refusals.overloaded(settings.overload, settings, call.requestId), context);
    return;
  }
  if (answeredByFault(call, context)) return;
  const t = clock.monotonic();
  const usedBefore = meters.levels(call.meters, t);
  const verdict = meters.decide(call.meters, call.cost, t);
  const usedAfter = meters.levels(call.meters, t);
  const entry = record(call, context, {
    decision: verdict.kind,
    usedBefore,
    usedAfter,
    metric: verdict.kind === 'admitted' ? '' : verdict.meter.dimension,
    waitMs: verdict.kind === 'throttled' ? verdict.waitMs : 0,
    executed: verdict.kind === 'admitted',
  });
  if (verdict.kind === 'admitted' && call.endpoint === 'messages') {
    context.promptCache.keep(`${call.account.org}|${call.family}|`, call.body, t);
  }
  if (verdict.kind === 'admitted') await doWork(call, entry, t, context);
  else refuse(call, entry, verdict, t, context);
}

function quotaOf({ org, project }: Account, { settings }: LanguageModelContext): QuotaState {
  const own = settings.quotaState[project] ?? 'ok';
  return own === 'ok' ? (settings.quotaState[org] ?? 'ok') : own;
}

function refuse(
  call: Call,
  entry: LogEntry,
  verdict: Exclude<Verdict, { kind: 'admitted' }>,
  t: number,
  context: LanguageModelContext,
): void {
  const { settings } = context;
  const { meter, requested } = verdict;
  const refusal = {
    dialect: settings.dialect,
    model: call.model,
    family: call.family,
    org: call.account.org,
    project: meter.owner === 'project' ? call.account.project : null,
    dimension: meter.dimension,
    limit: meter.bucket.limit,
    used: meter.bucket.limit - meter.bucket.remaining(t),
    requested,
    waitMs: verdict.kind === 'throttled' ? verdict.waitMs : 0,
  };
  const limits = limitsOf(call, t, context);
  if (verdict.kind === 'too-large') {
    send(call.exchange, refusals.tooLarge(refusal, settings, limits, call.requestId));
    return;
  }
  sendRefusal(call, entry, refusals.throttled(refusal, meter, settings, limits, call.requestId), context);
}

async function doWork(call: Call, entry: LogEntry, t: number, context: LanguageModelContext): Promise<void> {
  const fault = context.faults.take(afterLimits, faultTarget(call));
  if (fault?.kind === 'clock-skew') call.exchange.skewMs = (fault.seconds ?? 0) * 1000;
  const limits = fault?.kind === 'no-ratelimit-headers' ? {} : limitsOf(call, t, context);
  const admitted: Admitted = { ...call, entry, headers: { ...identity(call, context), ...limits } };
  const { clock, random, settings } = context;
  await work(admitted, fault, { clock, random, settings });
}

/** The limit fields as they are at `t`. */
function limitsOf(call: Call, t: number, { clock, settings }: LanguageModelContext): Record<string, string> {
  const at = clock.now() + call.exchange.skewMs;
  return limitFields(call.meters, call.cost, settings, { t, at });
}

/** Fields by which the provider names itself and the caller. */
function identity(call: Call, { settings }: LanguageModelContext): Record<string, string> {
  const own = refusals.ids(settings, call.requestId);
  if (settings.dialect === 'anthropic') return { ...own, 'anthropic-organization-id': call.account.org };
  if (settings.dialect !== 'openai') return own;
  return {
    ...own,
    'openai-organization': call.account.org,
    'openai-project': call.account.project,
    'openai-processing-ms': String(settings.latency.baseMs),
    'openai-version': '2020-10-01',
    ...(call.endpoint === 'embeddings' ? { 'openai-model': call.model } : {}),
  };
}
