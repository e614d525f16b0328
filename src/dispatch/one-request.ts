/**
 * Single requests to a token endpoint, beside those of calls. Each has a connection of its own, guarded as those of calls are; no redirect
 * is followed, so that a secret goes to the configured place only.
 */
import type { Readable } from 'node:stream';
import { noToken, type SendTokenRequest } from '../credentials/token-endpoint.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { bodyError } from './transport-error.ts';
import { Transport } from './transport.ts';

/** A longer response is no token. Characters. */
const maxResponseLength = 65_536;

/** An endpoint that takes longer is too slow to be waited for: one more try is worth more. Milliseconds. */
export const endpointLimitMs = 10_000;
const ms = endpointLimitMs;
const timeouts = { connectMs: ms, headMs: ms, idleMs: ms, totalMs: ms };

export const createEndpoint =
  (parts: AgentParts): SendTokenRequest =>
  async (request, way, signal) => {
    const { origin, host, pathname, search } = new URL(request.url);
    const body = Buffer.from(request.body);
    const fields = { host, ...request.fields, 'content-length': String(body.length) };
    const pathAndQuery = pathname + search;
    let agents: ReturnType<typeof createAgents> | null = null;
    try {
      // It reads `caFile`, which may be gone since the start.
      agents = createAgents({ ...way, maxSockets: 1 }, parts);
      const agent = agents.forOrigin(origin);
      const sent = { origin, method: 'POST', pathAndQuery, fields, body, agent, timeouts, signal };
      const response = await new Transport(parts.clock).send(sent);
      const { status, rawFields } = response.head;
      const text = await textOf(response.body);
      if (text === null) return noToken('invalid');
      return { kind: 'answered', status, fields: fieldMap(rawFields), body: text };
    } catch (error) {
      const { kind } = bodyError(error);
      return noToken(kind === 'reset' || kind === 'aborted' ? 'unreachable' : kind);
    } finally {
      agents?.close();
    }
  };

/** `null`: it is too long. */
async function textOf(body: Readable): Promise<string | null> {
  let text = '';
  for await (const chunk of body.setEncoding('utf8') as AsyncIterable<string>) {
    text += chunk;
    if (text.length > maxResponseLength) return null;
  }
  return text;
}
