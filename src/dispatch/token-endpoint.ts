/**
 * One request to a token endpoint: a small body there, a small response back, within one limit of time.
 *
 * Owns: the connection, which is guarded as those to the upstream are. Does not own: what is asked and what a response
 * means. Keeps: no redirect is followed, so that a secret goes to the configured place only; a failure names its class and
 * nothing else.
 */
import type { Readable } from 'node:stream';
import type { UpstreamSettings } from '../config/settings.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts, type Agents } from './agents.ts';
import { bodyError, TransportError } from './transport-error.ts';
import { createTransport } from './transport.ts';

/** An endpoint that takes longer is too slow to be waited for: one more try is worth more. Milliseconds. */
export const endpointLimitMs = 10_000;
/** A longer response is no token. */
const maxResponseBytes = 65_536;

export interface EndpointRequest {
  readonly url: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface EndpointReply {
  readonly status: number;
  /** Lower-case names; repeats joined. */
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string;
}

export type EndpointResult =
  | { readonly kind: 'answered'; readonly reply: EndpointReply }
  | { readonly kind: 'failed'; readonly fault: 'unreachable' | 'address_denied' | 'timeout' | 'invalid' };

export type AskEndpoint = (
  request: EndpointRequest,
  way: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>,
  signal: AbortSignal,
) => Promise<EndpointResult>;

/** Requests are rare: each has a connection of its own. */
export function createEndpoint(parts: AgentParts): AskEndpoint {
  const transport = createTransport(parts);
  const timeouts = {
    connectMs: endpointLimitMs,
    headMs: endpointLimitMs,
    idleMs: endpointLimitMs,
    totalMs: endpointLimitMs,
  };
  return async ({ url, fields, body }, way, signal) => {
    let agents: Agents | null = null;
    try {
      agents = createAgents({ ...way, maxSockets: 1 }, parts);
      const { origin, host, pathname, search } = new URL(url);
      const bytes = Buffer.from(body);
      const response = await transport.send({
        origin,
        method: 'POST',
        pathAndQuery: pathname + search,
        fields: { host, ...fields, 'content-length': String(bytes.length) },
        body: bytes,
        agent: agents.forOrigin(origin),
        timeouts,
        signal,
      });
      const text = await textOf(response.body);
      if (text === null) return { kind: 'failed', fault: 'invalid' };
      const { status, rawFields } = response.head;
      return { kind: 'answered', reply: { status, fields: fieldMap(rawFields), body: text } };
    } catch (error) {
      return { kind: 'failed', fault: classOf(error) };
    } finally {
      agents?.close();
    }
  };
}

function classOf(error: unknown): 'unreachable' | 'address_denied' | 'timeout' | 'invalid' {
  const kind = error instanceof TransportError ? error.kind : 'unreachable';
  return kind === 'reset' || kind === 'aborted' ? 'unreachable' : kind;
}

/** `null`: it is too long. */
async function textOf(body: Readable): Promise<string | null> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of body as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > maxResponseBytes) return null;
      chunks.push(chunk);
    }
  } catch (error) {
    throw bodyError(error);
  }
  return Buffer.concat(chunks).toString('utf8');
}
