/** Clients that always have so many calls under way, and what a row says of their waits. */
import { systemClock } from '../../src/clock.ts';
import { clientAgent, send, type CallResponse } from '../../test/support/redis-fleet.ts';
import type { Fleet } from './fleet.ts';

/** What each call of a client is. */
export interface Kind {
  readonly path: string;
  readonly key: string;
  /** Beginning of the nonces. */
  readonly name: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Crowd {
  /** Sends no further calls; resolves with all, in the order of their responses, when the last one was answered. */
  end(): Promise<readonly CallResponse[]>;
  /** Hangs up on the calls that are under way. */
  leave(): void;
}

/** So many calls at any time, each sent when one was answered, through the replicas in turn. */
export function crowdOf({ gateways }: Pick<Fleet, 'gateways'>, kind: Kind, count: number): Crowd {
  const agent = clientAgent();
  const gone = new AbortController();
  const responses: CallResponse[] = [];
  let isOver = false;
  let sent = 0;
  const oneAfterAnother = async (): Promise<void> => {
    while (!isOver) {
      const nonce = `${kind.name}-${(sent += 1)}`;
      const url = gateways[sent % gateways.length]?.url ?? '';
      responses.push(await send({ ...kind, url, nonce, agent, signal: gone.signal }));
    }
  };
  const work = Promise.all(Array.from({ length: count }, oneAfterAnother));
  return {
    async end() {
      isOver = true;
      await work;
      agent.destroy();
      return responses;
    },
    leave() {
      isOver = true;
      gone.abort();
      agent.destroy();
    },
  };
}

/** Sends so many calls at once; resolves with all responses. */
export async function atOnce(
  { gateways }: Pick<Fleet, 'gateways'>,
  kind: Kind,
  count: number,
): Promise<readonly CallResponse[]> {
  const agent = clientAgent();
  const calls = Array.from({ length: count }, (_, n) =>
    send({ ...kind, url: gateways[n % gateways.length]?.url ?? '', nonce: `${kind.name}-${n}`, agent }),
  );
  const responses = await Promise.all(calls);
  agent.destroy();
  return responses;
}

/** Whoever was answered from then on, by the client's monotonic clock. */
export const answeredFrom = (responses: readonly CallResponse[], fromMs: number): readonly CallResponse[] =>
  responses.filter(({ sentAt, tookMs }) => sentAt + tookMs >= fromMs);

/** Milliseconds. */
export function p95Of(responses: readonly CallResponse[]): number {
  const times = responses.map(({ tookMs }) => tookMs).toSorted((a, b) => a - b);
  return times[Math.ceil(times.length * 0.95) - 1] ?? Infinity;
}

export const now = (): number => systemClock.monotonic();
