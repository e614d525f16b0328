/**
 * The W3C `traceparent` field, in and out. Owns its form; does not own who is sampled. A field that is not well-formed,
 * or comes twice, counts as none.
 */
import { TraceFlags, type SpanContext } from '@opentelemetry/api';

/** The client's span, from one well-formed W3C `traceparent`; `null` starts a new trace. */
export function parentOf(rawFields: readonly string[]): SpanContext | null {
  let found: string | null = null;
  for (let i = 0; i + 1 < rawFields.length; i += 2) {
    const name = rawFields[i];
    if (name?.length !== 11 || name.toLowerCase() !== 'traceparent') continue;
    if (found !== null) return null;
    found = rawFields[i + 1] ?? '';
  }
  if (found === null) return null;
  const match =
    /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(found);
  const [, version, traceId, spanId, flags, rest] = match ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  if (version === '00' && rest !== undefined) return null;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & TraceFlags.SAMPLED, isRemote: true };
}

/** The `traceparent` field that a request carries (W3C Trace Context, level 1). */
export const traceparentOf = ({ traceId, spanId, traceFlags }: SpanContext): string =>
  `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
