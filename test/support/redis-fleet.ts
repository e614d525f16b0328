/** Several replicas over one Redis, and a client that goes round them: what cluster tests and the verification share. */
import { Agent, request, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';

export interface FleetOptions {
  /** YAML of the content of `redis:`; left out, the limiter is embedded. */
  readonly redis?: string;
  readonly modelUrl?: string;
  readonly shopUrl?: string;
  /** YAML, one line: content of the limits of `openai` and `shop`. */
  readonly modelLimits?: string;
  readonly shopLimits?: string;
  readonly workspaces?: readonly string[];
  /** YAML lines of each workspace, indented by four blanks. */
  readonly workspace?: string;
  readonly port?: number;
  readonly adminPort?: number;
}

/** API keys by workspace, and the configuration of one replica for these hashes. */
export function fleetConfig(options: FleetOptions) {
  const { redis, workspace = '', workspaces = ['acme'] } = options;
  const made = workspaces.map((name) => [name, createKey()] as const);
  const upstream = (name: string, kind: string, url: string | undefined, credential: string, limits = '') =>
    url === undefined
      ? ''
      : `  ${name}: { kind: ${kind}, origins: ["${url}"], allowPrivateAddresses: true, credential: { ${credential} }, limits: { ${limits} } }\n`;
  const openai = 'header: authorization, value: "Bearer sk-sim"';
  const shop = 'header: x-shopify-access-token, value: "shpat_sim"';
  return {
    keys: Object.fromEntries(made.map(([name, { key }]) => [name, key])),
    yaml: (port = 0, adminPort = 0) => `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: ${port}, adminPort: ${adminPort}, drainSeconds: 5, drainDelaySeconds: 0 }
${redis === undefined ? '' : `redis: { ${redis} }`}
privacy: { labelKey: "a label key for tests only" }
log: { level: info, sampleSuccesses: 0 }
upstreams:
${upstream('openai', 'language-model', options.modelUrl, openai, options.modelLimits)}${upstream('shop', 'commerce', options.shopUrl, shop, options.shopLimits)}
workspaces:
${made.map(([name, { hash }]) => `  ${name}:\n    keys: ["${hash}"]\n${workspace}`).join('\n')}`,
  };
}

export type CallResponse = Awaited<ReturnType<typeof send>>;

/** What a refusal says beside its code; `heldBy` is `unreadable` when its document is not JSON. */
function refusalOf({ headers }: Pick<IncomingMessage, 'headers'>, document: string) {
  const retryAfterMs = headers['retry-after-ms'] === undefined ? null : Number(headers['retry-after-ms']);
  const ticket = headers['sluice-ticket'];
  let heldBy: unknown = '';
  try {
    if (document !== '') ({ heldBy } = JSON.parse(document) as { heldBy?: unknown });
  } catch {
    heldBy = 'unreadable';
  }
  return {
    heldBy: typeof heldBy === 'string' ? heldBy : '',
    retryAfterMs,
    ticket: typeof ticket === 'string' ? ticket : null,
  };
}

export const clientAgent = (): Agent => new Agent({ keepAlive: true, maxSockets: Infinity });

/** Sends one call; a broken connection is status 0. */
export async function send(call: {
  readonly url: string;
  readonly path: string;
  readonly key: string;
  readonly nonce: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly agent?: Agent;
  readonly signal?: AbortSignal;
}) {
  const sentAt = systemClock.monotonic();
  const body = call.body === undefined ? null : JSON.stringify(call.body);
  /** `code`: of a refusal made by Sluice, or of a broken connection; empty for a response of the upstream. */
  const ended = await new Promise<{ status: number; code: string } & ReturnType<typeof refusalOf>>(
    (resolve) => {
      const end = (status: number, code: string, refusal = refusalOf({ headers: {} }, '')): void =>
        resolve({ status, code, ...refusal });
      const outgoing = request(
        `${call.url}${call.path}`,
        {
          method: body === null ? 'GET' : 'POST',
          ...(call.agent === undefined ? {} : { agent: call.agent }),
          ...(call.signal === undefined ? {} : { signal: call.signal }),
          headers: {
            'sluice-key': call.key,
            'x-nonce': call.nonce,
            ...(body === null
              ? {}
              : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
            ...call.headers,
          },
        },
        (response) => {
          const code = String(response.headers['sluice-error'] ?? '');
          text(response).then(
            (all) => end(response.statusCode ?? 0, code, refusalOf(response, code === '' ? '' : all)),
            () => end(0, 'cut'),
          );
        },
      );
      outgoing.on('error', (failure: NodeJS.ErrnoException) => end(0, failure.code ?? failure.name));
      outgoing.end(body ?? undefined);
    },
  );
  return { nonce: call.nonce, sentAt, tookMs: systemClock.monotonic() - sentAt, ...ended };
}

export const chatPath = '/via/openai/v1/chat/completions';
export const chatBody = { model: 'gpt-4o', messages: [{ role: 'user', content: 'hello' }], max_tokens: 8 };
export const ordersPath = '/via/shop/admin/api/2026-10/orders.json';

/** Calls that reached the upstream more than `apartMs` behind one that was sent more than `apartMs` after them. */
export function overtaken(
  responses: readonly CallResponse[],
  entries: readonly LogEntry[],
  apartMs: number,
): number {
  const sentAt = new Map(responses.map(({ nonce, sentAt: at }) => [nonce, at]));
  const order = [...entries]
    .filter(({ decision, nonce }) => decision === 'admitted' && sentAt.has(nonce))
    .sort((a, b) => a.arrivedT - b.arrivedT)
    .map(({ nonce, arrivedT }) => ({ arrivedT, sentAt: sentAt.get(nonce) ?? 0 }));
  let latest = -Infinity;
  let before = 0;
  let count = 0;
  for (const call of order) {
    for (let other = order[before]; other !== undefined && other.arrivedT + apartMs < call.arrivedT;) {
      latest = Math.max(latest, other.sentAt);
      before += 1;
      other = order[before];
    }
    if (call.sentAt + apartMs < latest) count += 1;
  }
  return count;
}

export function makespan(entries: readonly LogEntry[]): number {
  const times = entries.filter(({ decision }) => decision === 'admitted').map(({ t }) => t);
  return times.length === 0 ? 0 : Math.max(...times) - Math.min(...times);
}

export const count = (entries: readonly LogEntry[], decision: LogEntry['decision']): number =>
  entries.filter((entry) => entry.decision === decision).length;

export const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    systemClock.after(ms, resolve);
  });
