/**
 * Faults that take effect before a call is admitted; those of the work are in `work.ts`.
 *
 * Owns: the responses that no bucket is asked for, a limit that changes. Does not own the queue (`../faults.ts`).
 */
import type { Fault, FaultKind, FaultTarget } from '../faults.ts';
import type { Call } from './call.ts';
import { configure, faultTarget, record, sendRefusal, type LanguageModelContext } from './context.ts';
import type { CallResponse } from './refusals.ts';

const beforeLimits: ReadonlySet<FaultKind> = new Set<FaultKind>([
  'answer',
  'headers-minus-one',
  'retry-after-zero',
]);
const limitChange: ReadonlySet<FaultKind> = new Set<FaultKind>(['limit-change']);

/** The `limit-change` fault: the model's limit is another one from this call on. */
export function changeLimit(target: FaultTarget, context: LanguageModelContext): void {
  const fault = context.faults.take(limitChange, target);
  if (fault === undefined) return;
  const model = context.settings.models[target.model];
  const changed = { ...model, [fault.dimension ?? 'rpm']: fault.limit ?? 1 };
  configure({ models: { [target.model]: changed } }, context);
}

/** True when a fault has answered before any bucket was asked. */
export function answeredByFault(call: Call, context: LanguageModelContext): boolean {
  const fault = context.faults.take(beforeLimits, faultTarget(call));
  if (fault === undefined) return false;
  const entry = record(call, context, { decision: 'fault' });
  entry.fault = fault.kind;
  sendRefusal(call, entry, faultResponse(fault), context);
  return true;
}

/** U21 (limits of -1, no hint) and U19 (empty token bucket that claims to be full at once). */
function faultResponse(fault: Fault): CallResponse {
  const message = 'Rate limit is exceeded. Try again later.';
  const body = { error: { code: '429', message } };
  if (fault.kind === 'headers-minus-one') {
    const minus = { 'x-ratelimit-limit-tokens': '-1', 'x-ratelimit-remaining-tokens': '-1' };
    return { status: 429, headers: { ...minus, 'x-ratelimit-reset-tokens': '0' }, body };
  }
  if (fault.kind === 'retry-after-zero') {
    const headers = {
      'retry-after': '1',
      'retry-after-ms': '0',
      'x-ratelimit-limit-requests': '5',
      'x-ratelimit-limit-tokens': '5000',
      'x-ratelimit-remaining-requests': '4',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-renewalperiod-requests': '60',
      'x-ratelimit-renewalperiod-tokens': '60',
      'x-ratelimit-reset-requests': '12',
      'x-ratelimit-reset-tokens': '0',
      'x-ratelimit-type': 'Tokens',
    };
    return { status: 429, headers, body };
  }
  return { status: fault.status ?? 200, headers: fault.headers ?? {}, body: fault.body ?? '' };
}
