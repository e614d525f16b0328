/**
 * Single requests beside those of calls: to a token endpoint, and to the origins that `sluice check --connect` tries. Each has a
 * connection of its own, guarded as those of calls are; no redirect is followed, so that a secret goes to the configured place only.
 */
import type { Readable } from 'node:stream';
import type { InjectedField, UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamKind, UpstreamSettings, UpstreamTimeouts } from '../config/settings.ts';
import type { SendTokenRequest } from '../credentials/token-fetcher.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { createAgents, type AgentParts, type Resolve } from './agents.ts';
import { bodyError, failureWords, TransportError } from './transport-error.ts';
import { Transport } from './transport.ts';

type Way = Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>;

interface OneRequest {
  readonly url: string;
  readonly method: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: Buffer | null;
  readonly timeouts: UpstreamTimeouts;
  readonly signal: AbortSignal;
}

/** Sends one request and hands its response to `read`. @throws TransportError */
async function sendOne<T>(
  parts: AgentParts,
  way: Way,
  { url, method, fields, body, timeouts, signal }: OneRequest,
  read: (response: UpstreamResponse) => Promise<T>,
): Promise<T> {
  const agents = createAgents({ ...way, maxSockets: 1 }, parts);
  try {
    const { origin, host, pathname, search } = new URL(url);
    const response = await new Transport(parts.clock).send({
      origin,
      method,
      pathAndQuery: pathname + search,
      fields: { host, ...fields },
      body,
      agent: agents.forOrigin(origin),
      timeouts,
      signal,
    });
    return await read(response);
  } finally {
    agents.close();
  }
}

// Token endpoints

/** An endpoint that takes longer is too slow to be waited for: one more try is worth more. Milliseconds. */
export const endpointLimitMs = 10_000;
/** A longer response is no token. */
const maxResponseBytes = 65_536;

export function createEndpoint(parts: AgentParts): SendTokenRequest {
  const ms = endpointLimitMs;
  const timeouts = { connectMs: ms, headMs: ms, idleMs: ms, totalMs: ms };
  return async ({ url, fields, body }, way, signal) => {
    const bytes = Buffer.from(body);
    const request: OneRequest = {
      url,
      method: 'POST',
      fields: { ...fields, 'content-length': String(bytes.length) },
      body: bytes,
      timeouts,
      signal,
    };
    try {
      return await sendOne(
        parts,
        way,
        request,
        async ({ head, body: answer }): ReturnType<SendTokenRequest> => {
          const text = await textOf(answer);
          if (text === null) return { kind: 'failed', fault: 'invalid' };
          const reply = { status: head.status, fields: fieldMap(head.rawFields), body: text };
          return { kind: 'answered', reply };
        },
      );
    } catch (error) {
      const kind = error instanceof TransportError ? error.kind : 'unreachable';
      return { kind: 'failed', fault: kind === 'reset' || kind === 'aborted' ? 'unreachable' : kind };
    }
  };
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

// Trials

/**
 * What one GET showed. `failed`: no response came · `refused`: the upstream refused the credential · `accepted`: it accepted the
 * credential · `unclear`: it responded, and the response says nothing about the credential.
 */
export type TrialResult =
  | { readonly kind: 'failed'; readonly words: string }
  | { readonly kind: 'refused'; readonly status: number }
  | { readonly kind: 'accepted' | 'unclear'; readonly status: number };

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
  parts: { readonly clock: Clock; readonly resolve?: Resolve | undefined },
): Promise<TrialResult> {
  const request: OneRequest = {
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
      return trialResultOf(status, upstream.kind, credential);
    });
  } catch (error) {
    if (!(error instanceof TransportError)) throw error;
    return { kind: 'failed', words: failureWords(error) ?? error.message };
  }
}

function trialResultOf(status: number, kind: UpstreamKind, credential: InjectedField | null): TrialResult {
  if (credential !== null && (status === 401 || status === 403)) return { kind: 'refused', status };
  const isConclusive = credential !== null && kind === 'language-model' && status >= 200 && status < 300;
  return { kind: isConclusive ? 'accepted' : 'unclear', status };
}
