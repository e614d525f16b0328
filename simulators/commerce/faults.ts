/**
 * Planted faults that take effect before a store's limits are checked, in REST and GraphQL. Does not own: the queue of faults
 * (`../faults.ts`), faults that take effect later (`../commerce-rest.ts`, `../commerce-graphql.ts`).
 */
import type { FaultKind } from '../faults.ts';
import { faultTarget, record, send, type CommerceContext, type StoreCall } from './context.ts';

const beforeLimits: ReadonlySet<FaultKind> = new Set<FaultKind>(['answer', 'reset-before-execution']);

/** True when a fault has answered the call, or cut its connection, instead of the API. `bucket`: name for the log. */
export function answeredByFault(call: StoreCall, context: CommerceContext, bucket: string): boolean {
  const fault = context.faults.take(beforeLimits, faultTarget(call));
  if (fault === undefined) return false;
  record(call, context, bucket, { decision: 'fault' }).fault = fault.kind;
  if (fault.kind === 'reset-before-execution') call.exchange.cut();
  else {
    const text = typeof fault.body === 'string' ? fault.body : JSON.stringify(fault.body ?? '');
    send(call.exchange, fault.status ?? 200, fault.headers ?? {}, text);
  }
  return true;
}
