/** A call as a test likes to write it, and what is read of it before it is sent. */
import type { UpstreamKind } from '../../src/call.ts';
import { describeCall, type CallDescription } from '../../src/dispatch/estimate.policy.ts';

export interface Asked {
  readonly kind?: UpstreamKind;
  readonly method?: string;
  /** A text, bytes, or what becomes JSON. */
  readonly body?: unknown;
  readonly type?: string | null;
  readonly fields?: readonly string[];
}

export function called(path: string, asked: Asked = {}): CallDescription {
  const {
    kind = 'language-model',
    method = 'POST',
    body = '',
    type = 'application/json',
    fields = [],
  } = asked;
  return describeCall(kind, {
    method,
    path,
    contentType: type,
    rawFields: fields,
    body: Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
  });
}
export const post = (path: string, body: unknown): CallDescription => called(path, { body });
