/**
 * One request to a token endpoint: a small body there, a small response back, within one limit of time.
 *
 * Owns: the connection, which is guarded as those to the upstream are. Does not own: what is asked and what a response
 * means. Keeps: no redirect is followed, so that a secret goes to the configured place only; a failure names its class and
 * nothing else.
 */
import http from 'node:http';
import https from 'node:https';
import type { UpstreamSettings } from '../config/settings.ts';
import { createAgents, type AgentParts, type Agents } from './agents.ts';
import { faultOf } from './transport-error.ts';

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
  const { clock } = parts;
  return async (request, way, signal) => {
    const limit = new AbortController();
    const cancel = clock.after(endpointLimitMs, () => limit.abort());
    let agents: Agents | null = null;
    try {
      agents = createAgents({ ...way, maxSockets: 1 }, parts);
      const both = AbortSignal.any([signal, limit.signal]);
      const reply = await exchange(request, agents.forOrigin(request.url), both);
      return reply === null ? { kind: 'failed', fault: 'invalid' } : { kind: 'answered', reply };
    } catch (error) {
      return { kind: 'failed', fault: limit.signal.aborted ? 'timeout' : classOf(error) };
    } finally {
      cancel();
      agents?.close();
    }
  };
}

function classOf(error: unknown): 'unreachable' | 'address_denied' | 'invalid' {
  const fault = faultOf(error, 'connect');
  return fault === 'address_denied' || fault === 'invalid' ? fault : 'unreachable';
}

/** Resolves with `null` when the response is too long. */
function exchange(
  { url, fields, body }: EndpointRequest,
  agent: http.Agent | https.Agent,
  signal: AbortSignal,
): Promise<EndpointReply | null> {
  return new Promise((resolve, reject) => {
    const { request } = url.startsWith('https:') ? https : http;
    const headers = { ...fields, 'content-length': String(Buffer.byteLength(body)) };
    const asked = request(url, { method: 'POST', headers, agent, signal }, (response) => {
      const chunks: Buffer[] = [];
      let bytes = 0;
      response.on('data', (chunk: Buffer) => {
        bytes += chunk.length;
        if (bytes <= maxResponseBytes) return void chunks.push(chunk);
        resolve(null);
        response.destroy();
      });
      response.on('error', reject);
      response.on('end', () =>
        resolve({
          status: response.statusCode ?? 0,
          fields: fieldsOf(response.headers),
          body: Buffer.concat(chunks).toString('utf8'),
        }),
      );
    });
    asked.on('error', reject);
    asked.end(body);
  });
}

const fieldsOf = (headers: http.IncomingHttpHeaders): ReadonlyMap<string, string> =>
  new Map(
    Object.entries(headers).flatMap(([name, value]): [string, string][] =>
      value === undefined ? [] : [[name, typeof value === 'string' ? value : value.join(', ')]],
    ),
  );
