/**
 * Tries the origins of an upstream for `sluice check --connect`: one GET for each origin and credential, over connection pools of the
 * same kind and with the same address checks and certificate authorities as calls. Each GET costs a request of the upstream's quota.
 *
 * Owns: what is requested, and what the response shows. Does not own: words for the terminal (`cli/`).
 */
import type { InjectedField } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import { createAgents, type Resolve } from './agents.ts';
import { failureWords } from './failure-reason.policy.ts';
import { createTransport, TransportError, type Transport } from './transport.ts';

/**
 * What one GET showed. `failed`: no response came · `refused`: the upstream refused the credential · `accepted`: it accepted the
 * credential · `unclear`: it responded, and the response says nothing about the credential.
 */
export type TrialResult =
  | { readonly kind: 'failed'; readonly words: string }
  | { readonly kind: 'refused'; readonly status: number }
  | { readonly kind: 'accepted' | 'unclear'; readonly status: number };

export interface Trial {
  /** Tries an origin with a credential; `null` = without any. */
  run(origin: string, credential: InjectedField | null): Promise<TrialResult>;
  close(): void;
}

/** Every valid key may read the list of models. Of other kinds of upstream no path is known to exist. */
const paths: Record<UpstreamKind, string> = {
  'language-model': '/v1/models',
  commerce: '/',
  generic: '/',
};
/** Shorter than those of calls, because somebody waits at a terminal. Milliseconds. */
const timeouts = { connectMs: 5_000, headMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

export function createTrial(upstream: UpstreamSettings, clock: Clock, resolve?: Resolve): Trial {
  const agents = createAgents(upstream, resolve === undefined ? { clock } : { clock, resolve });
  const transport = createTransport({ clock });
  return {
    async run(origin, credential) {
      try {
        const status = await statusOf(transport, agents.forOrigin(origin), {
          origin,
          path: paths[upstream.kind],
          credential,
        });
        return trialResultOf(status, upstream.kind, credential);
      } catch (error) {
        if (!(error instanceof TransportError)) throw error;
        return { kind: 'failed', words: failureWords(error) ?? error.message };
      }
    },
    close() {
      transport.close();
      agents.close();
    },
  };
}

async function statusOf(
  transport: Transport,
  agent: ReturnType<ReturnType<typeof createAgents>['forOrigin']>,
  asked: { readonly origin: string; readonly path: string; readonly credential: InjectedField | null },
): Promise<number> {
  const { origin, path, credential } = asked;
  const { head, body } = await transport.send({
    origin,
    method: 'GET',
    pathAndQuery: path,
    fields: {
      host: new URL(origin).host,
      accept: '*/*',
      ...(credential === null ? {} : { [credential.field]: credential.value }),
    },
    body: null,
    agent,
    timeouts,
    signal: new AbortController().signal,
  });
  body.on('error', () => {}).destroy();
  return head.status;
}

function trialResultOf(status: number, kind: UpstreamKind, credential: InjectedField | null): TrialResult {
  if (credential !== null && (status === 401 || status === 403)) return { kind: 'refused', status };
  const isConclusive = credential !== null && kind === 'language-model' && status >= 200 && status < 300;
  return { kind: isConclusive ? 'accepted' : 'unclear', status };
}
