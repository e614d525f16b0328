/** Calls at a fixed spacing, round robin over replicas. */
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { clientAgent, pause, send, type CallResponse } from '../../test/support/redis-fleet.ts';
import type { Gateway } from './gateways.ts';

export interface Load {
  readonly to: readonly Gateway[];
  readonly calls: number;
  /** Milliseconds between two calls; `null`: each when the one before was answered. */
  readonly everyMs: number | null;
  readonly path: string;
  readonly key: string;
  /** Beginning of the nonces, `n` by default. */
  readonly name?: string;
  readonly body?: (n: number) => unknown;
  readonly waitSeconds: number;
}

export async function drive(load: Load): Promise<readonly CallResponse[]> {
  const { to, calls, everyMs, path, key, name = 'n', body, waitSeconds } = load;
  const agent = clientAgent();
  const nothing = { path: '/nothing', key: '', nonce: '', agent };
  // Replicas and client have connections to each other before the first call.
  await Promise.all(to.flatMap(({ url }) => [1, 2, 3, 4].map(() => send({ url, ...nothing }))));
  const startedAt = systemClock.monotonic();
  const work: Promise<CallResponse>[] = [];
  for (let n = 0; n < calls; n += 1) {
    if (everyMs === null) await work.at(-1);
    else await pause(Math.max(0, startedAt + n * everyMs - systemClock.monotonic()));
    work.push(
      send({
        url: to[n % to.length]?.url ?? '',
        path,
        key,
        nonce: `${name}-${n}`,
        agent,
        headers: { prefer: `wait=${waitSeconds}` },
        ...(body === undefined ? {} : { body: body(n) }),
      }),
    );
  }
  const responses = await Promise.all(work);
  agent.destroy();
  return responses;
}

/** Nonces that were executed upstream more than once. */
export function twice(entries: readonly LogEntry[]): number {
  const made = Map.groupBy(
    entries.filter(({ executed }) => executed),
    ({ nonce }) => nonce,
  );
  return [...made.values()].filter(({ length }) => length > 1).length;
}
