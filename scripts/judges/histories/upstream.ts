/** The upstream of the recorded histories: notes when each call arrived and when its response ended, on this process' clock. */
import { serve } from '../../cluster/upstream.ts';

export interface Visit {
  /** Monotonic milliseconds. */
  readonly arrivedAt: number;
  endedAt: number;
}

export interface Upstream {
  readonly origin: string;
  /** By the call's nonce. */
  readonly visits: ReadonlyMap<string, Visit>;
  /** Calls that came more than once. */
  readonly twice: number;
  stop(): void;
}

/** @param workMs how long it takes over a call */
export async function startUpstream(workMs: number): Promise<Upstream> {
  const visits = new Map<string, Visit>();
  let twice = 0;
  const { origin, stop } = await serve((request, response) => {
    const nonce = String(request.headers['x-nonce']);
    if (visits.has(nonce)) twice += 1;
    const visit = { arrivedAt: performance.now(), endedAt: Infinity };
    visits.set(nonce, visit);
    setTimeout(() => {
      visit.endedAt = performance.now();
      response.end('ok');
    }, workMs);
  });
  return {
    origin,
    visits,
    get twice() {
      return twice;
    },
    stop,
  };
}
