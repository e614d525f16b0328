/**
 * A paged API on a real socket, as GitHub and Slack limit it: so many calls in a window of a quota, then refusals until a time. A call
 * before that time is counted as one too early, for which the real ones ban a client.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import type { Clock } from '../../src/clock.ts';

export interface PagedApiOptions {
  readonly clock: Clock;
  /** Calls of one quota until it refuses. */
  readonly calls: number;
  /** For so long after the first refusal every call of the quota is refused. */
  readonly closedSeconds: number;
  readonly quotaOf: (path: string) => string;
  readonly refuse: (response: ServerResponse) => void;
  readonly respond: (request: PagedRequest, response: ServerResponse) => void;
}

export interface PagedRequest {
  /** As the upstream sees it: `http://127.0.0.1:<port>/path?query`. */
  readonly url: URL;
  readonly body: URLSearchParams;
}

export interface PagedApi {
  readonly url: string;
  readonly log: readonly { readonly path: string; readonly credential: string; readonly kind: Kind }[];
  /** Calls that met this fate. */
  count(kind: Kind): number;
  close(): Promise<void>;
}
type Kind = 'answered' | 'refused' | 'too early';

export async function startPagedApi(options: PagedApiOptions): Promise<PagedApi> {
  const { clock, calls, closedSeconds, quotaOf } = options;
  const log: { path: string; credential: string; kind: Kind }[] = [];
  const quotas = new Map<string, { left: number; closedUntil: number }>();
  const judge = (path: string): Kind => {
    const now = clock.now();
    const quota = quotas.get(quotaOf(path)) ?? { left: calls, closedUntil: 0 };
    quotas.set(quotaOf(path), quota);
    if (now < quota.closedUntil) return 'too early';
    if (quota.left > 0) {
      quota.left -= 1;
      return 'answered';
    }
    quota.left = calls;
    quota.closedUntil = now + closedSeconds * 1000;
    return 'refused';
  };
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const body = new URLSearchParams(await text(request));
    const url = new URL(request.url ?? '', `http://${request.headers.host ?? ''}`);
    const kind = judge(url.pathname);
    log.push({ path: url.pathname, credential: request.headers.authorization ?? '', kind });
    if (kind === 'answered') options.respond({ url, body }, response);
    else options.refuse(response);
  };
  const server = createServer((request, response) => void handle(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    log,
    count: (kind) => log.filter((entry) => entry.kind === kind).length,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
