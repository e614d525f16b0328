/**
 * Single requests to a token endpoint, beside those of calls. Each has a connection of its own, guarded as those of calls are; no redirect
 * is followed, so that a secret goes to the configured place only.
 */
import type { Readable } from 'node:stream';
import type { UpstreamSettings } from '../config/settings.ts';
import type { SendTokenRequest } from '../credentials/token-endpoint.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { bodyError, TransportError } from './transport-error.ts';
import { Transport, type TransportAttempt } from './transport.ts';

type OneRequest = Pick<TransportAttempt, 'method' | 'fields' | 'body' | 'timeouts' | 'signal'>;

/** Sends one request. Resolves with its response, whose body is `null` where it is too long. @throws TransportError */
async function sendOne(
  parts: AgentParts,
  way: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>,
  url: string,
  request: OneRequest,
) {
  const agents = createAgents({ ...way, maxSockets: 1 }, parts);
  try {
    const { origin, host, pathname, search } = new URL(url);
    const sent = { ...request, origin, pathAndQuery: pathname + search, agent: agents.forOrigin(origin) };
    const fields = { host, ...request.fields };
    const { head, body } = await new Transport(parts.clock).send({ ...sent, fields });
    return { status: head.status, fields: fieldMap(head.rawFields), body: await textOf(body) };
  } finally {
    agents.close();
  }
}

/** A longer response is no token. Characters. */
const maxResponseLength = 65_536;

async function textOf(body: Readable): Promise<string | null> {
  let text = '';
  try {
    for await (const chunk of body.setEncoding('utf8') as AsyncIterable<string>) {
      text += chunk;
      if (text.length > maxResponseLength) return null;
    }
  } catch (error) {
    throw bodyError(error);
  }
  return text;
}

/** An endpoint that takes longer is too slow to be waited for: one more try is worth more. Milliseconds. */
export const endpointLimitMs = 10_000;

export function createEndpoint(parts: AgentParts): SendTokenRequest {
  const ms = endpointLimitMs;
  const timeouts = { connectMs: ms, headMs: ms, idleMs: ms, totalMs: ms };
  return async ({ url, fields: given, body: text }, way, signal) => {
    const body = Buffer.from(text);
    const fields = { ...given, 'content-length': String(body.length) };
    try {
      const reply = await sendOne(parts, way, url, { method: 'POST', fields, body, timeouts, signal });
      const { body: said } = reply;
      return said === null
        ? { kind: 'failed', fault: 'invalid' }
        : { kind: 'answered', reply: { ...reply, body: said } };
    } catch (error) {
      const kind = error instanceof TransportError ? error.kind : 'unreachable';
      return { kind: 'failed', fault: kind === 'reset' || kind === 'aborted' ? 'unreachable' : kind };
    }
  };
}
