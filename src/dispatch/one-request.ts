/**
 * Single requests beside those of calls: to a token endpoint, and to the origins that `sluice check --connect` tries. Each has a
 * connection of its own, guarded as those of calls are; no redirect is followed, so that a secret goes to the configured place only.
 */
import type { Readable } from 'node:stream';
import type { InjectedField, UpstreamResponse } from '../call.ts';
import type { UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import type { SendTokenRequest } from '../credentials/token-endpoint.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { bodyError, failureWords, TransportError } from './transport-error.ts';
import { Transport, type TransportAttempt } from './transport.ts';

type OneRequest = Pick<TransportAttempt, 'method' | 'fields' | 'body' | 'timeouts' | 'signal'> & {
  readonly url: string;
};

/** Sends one request and hands its response to `read`. @throws TransportError */
async function sendOne<T>(
  parts: AgentParts,
  way: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>,
  { url, ...request }: OneRequest,
  read: (response: UpstreamResponse) => Promise<T>,
): Promise<T> {
  const agents = createAgents({ ...way, maxSockets: 1 }, parts);
  try {
    const { origin, host, pathname, search } = new URL(url);
    const sent = { ...request, origin, pathAndQuery: pathname + search, agent: agents.forOrigin(origin) };
    const fields = { host, ...request.fields };
    return await read(await new Transport(parts.clock).send({ ...sent, fields }));
  } finally {
    agents.close();
  }
}

// Token endpoints

/** An endpoint that takes longer is too slow to be waited for: one more try is worth more. Milliseconds. */
export const endpointLimitMs = 10_000;
/** A longer response is no token. Characters. */
const maxResponseLength = 65_536;

export function createEndpoint(parts: AgentParts): SendTokenRequest {
  const ms = endpointLimitMs;
  const timeouts = { connectMs: ms, headMs: ms, idleMs: ms, totalMs: ms };
  return async ({ url, fields: given, body: text }, way, signal) => {
    const body = Buffer.from(text);
    const fields = { ...given, 'content-length': String(body.length) };
    try {
      const request = { url, method: 'POST', fields, body, timeouts, signal };
      return await sendOne(parts, way, request, async ({ head, body }) => {
        const text = await textOf(body);
        if (text === null) return { kind: 'failed', fault: 'invalid' };
        const reply = { status: head.status, fields: fieldMap(head.rawFields), body: text };
        return { kind: 'answered', reply };
      });
    } catch (error) {
      const kind = error instanceof TransportError ? error.kind : 'unreachable';
      return { kind: 'failed', fault: kind === 'reset' || kind === 'aborted' ? 'unreachable' : kind };
    }
  };
}

/** `null`: it is too long. */
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

// Trials

/**
 * What one GET showed. `failed`: no response came · `refused`: the upstream refused the credential · `accepted`: it accepted the
 * credential · `unclear`: it responded, and the response says nothing about the credential.
 */
export type TrialResult =
  | { readonly kind: 'failed'; readonly words: string }
  | { readonly kind: 'refused' | 'accepted' | 'unclear'; readonly status: number };

/** Every valid key may read the list of models. Of other kinds of upstream no path is known to exist. */
const paths: Record<UpstreamKind, string> = {
  'language-model': '/v1/models',
  commerce: '/',
  generic: '/',
};
/** Shorter than those of calls, because somebody waits at a terminal. Milliseconds. */
const trialTimeouts = { connectMs: 5_000, headMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

/** Tries an origin of an upstream with a credential; `null` = without any. It costs a request of the upstream's quota. */
export async function tryOrigin(
  upstream: UpstreamSettings,
  { origin, credential }: { readonly origin: string; readonly credential: InjectedField | null },
  parts: AgentParts,
): Promise<TrialResult> {
  const request = {
    url: origin + paths[upstream.kind],
    method: 'GET',
    fields: { accept: '*/*', ...(credential === null ? {} : { [credential.field]: credential.value }) },
    body: null,
    timeouts: trialTimeouts,
    signal: new AbortController().signal,
  };
  try {
    return await sendOne(parts, upstream, request, async ({ head: { status }, body }) => {
      body.on('error', () => {}).destroy();
      if (credential === null) return { kind: 'unclear', status };
      if (status === 401 || status === 403) return { kind: 'refused', status };
      const isConclusive = upstream.kind === 'language-model' && status >= 200 && status < 300;
      return { kind: isConclusive ? 'accepted' : 'unclear', status };
    });
  } catch (error) {
    if (!(error instanceof TransportError)) throw error;
    return { kind: 'failed', words: failureWords(error) ?? error.message };
  }
}
