/** The client of the verification: calls at a fixed spacing, round robin over replicas that take connections. */
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { clientAgent, pause, send, type CallResponse } from '../../test/support/redis-fleet.ts';
import type { Gateway } from './fleet.ts';

export interface Load {
  readonly to: readonly Gateway[];
  readonly calls: number;
  /** Milliseconds between two calls; `null`: each when the one before was answered. */
  readonly everyMs: number | null;
  readonly path: string;
  /** The API key of every call, or of call `n`. */
  readonly key: string | ((n: number) => string);
  /** Beginning of the nonces, `n` by default. */
  readonly name?: string;
  readonly body?: unknown;
  /** The body of call `n`, in place of one for all. */
  readonly bodyOf?: (n: number) => unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** Runs beside the load. */
  readonly meanwhile?: () => Promise<void>;
}

export async function drive(load: Load): Promise<readonly CallResponse[]> {
  const agent = clientAgent();
  const isUp = load.to.map(() => true);
  await Promise.all(load.to.flatMap(({ url }) => [1, 2, 3, 4].map(() => fetchNothing(url, agent))));
  const startedAt = systemClock.monotonic();
  const other = load.meanwhile?.() ?? Promise.resolve();
  const work: Promise<CallResponse>[] = [];
  let sendings = 0;
  for (let n = 0; n < load.calls; n += 1) {
    if (load.everyMs === null) await work.at(-1);
    else await pause(Math.max(0, startedAt + n * load.everyMs - systemClock.monotonic()));
    for (let tries = 0; tries < load.to.length; tries += 1) {
      sendings += 1;
      if (isUp[sendings % load.to.length] === true && load.to[sendings % load.to.length]?.isAlive() === true)
        break;
    }
    const at = sendings % load.to.length;
    const nonce = `${load.name ?? 'n'}-${n}`;
    const { path, headers, bodyOf } = load;
    const body = bodyOf === undefined ? load.body : bodyOf(n);
    const key = typeof load.key === 'string' ? load.key : load.key(n);
    const url = load.to[at]?.url ?? '';
    work.push(
      send({
        url,
        path,
        key,
        nonce,
        agent,
        ...(body === undefined ? {} : { body }),
        ...(headers === undefined ? {} : { headers }),
      }).then((response) => {
        if (response.code === 'ECONNREFUSED') isUp[at] = false;
        return response;
      }),
    );
  }
  const responses = await Promise.all(work);
  await other;
  agent.destroy();
  return responses;
}

const fetchNothing = (url: string, agent: ReturnType<typeof clientAgent>): Promise<CallResponse> =>
  send({ url, path: '/nothing', key: '', nonce: '', agent });

/** Nonces that were executed upstream more than once. */
export function twice(entries: readonly LogEntry[]): number {
  const counts = new Map<string, number>();
  for (const { nonce, executed } of entries) if (executed) counts.set(nonce, (counts.get(nonce) ?? 0) + 1);
  return [...counts.values()].filter((times) => times > 1).length;
}
