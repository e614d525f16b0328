/**
 * Single requests beside those of calls: to a token endpoint, and to the origins that `sluice check --connect` tries. Each has a
 * connection of its own, guarded as those of calls are; no redirect is followed, so that a secret goes to the configured place only.
 */
import type { Readable } from 'node:stream';
import type { InjectedField } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { SendTokenRequest } from '../credentials/token-endpoint.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { bodyError, failureWords, TransportError } from './transport-error.ts';
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

/** A longer response is neither a token nor of interest. Characters. */
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

// Token endpoints

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

// Trials

/**
 * What one GET showed. `failed`: no response came · `refused`: the upstream refused the credential · `accepted`: it accepted the
 * credential · `unclear`: it responded, and the response says nothing about the credential.
 */
export type TrialResult =
  | { readonly kind: 'failed'; readonly words: string }
  | { readonly kind: 'refused' | 'accepted' | 'unclear'; readonly status: number };

/** Shorter than those of calls, because somebody waits at a terminal. Milliseconds. */
const trialTimeouts = { connectMs: 5_000, headMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

/** Tries an origin of an upstream with a credential; `null` = without any. It costs a request of the upstream's quota. */
export async function tryOrigin(
  upstream: UpstreamSettings,
  { origin, credential }: { readonly origin: string; readonly credential: InjectedField | null },
  parts: AgentParts,
): Promise<TrialResult> {
  // Every valid key may read the list of models. Of other kinds of upstream no path is known to exist.
  const isModel = upstream.kind === 'language-model';
  const fields = { accept: '*/*', ...(credential === null ? {} : { [credential.field]: credential.value }) };
  const { signal } = new AbortController();
  const request = { method: 'GET', fields, body: null, timeouts: trialTimeouts, signal };
  try {
    const { status } = await sendOne(parts, upstream, origin + (isModel ? '/v1/models' : '/'), request);
    if (credential === null) return { kind: 'unclear', status };
    if (status === 401 || status === 403) return { kind: 'refused', status };
    return { kind: isModel && status >= 200 && status < 300 ? 'accepted' : 'unclear', status };
  } catch (error) {
    if (!(error instanceof TransportError)) throw error;
    return { kind: 'failed', words: failureWords(error) ?? error.message };
  }
}
