/**
 * The one way to an upstream.
 *
 * Owns: all exchanges that go on, and what they share. Does not own: one exchange (`exchange.ts`), what is sent (fields, path and body
 * come finished), sending again, streaming the response to the client, every decision about throttling.
 */
import type { UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import { ShortLived } from '../short-lived.ts';
import { Exchange, type TransportAttempt } from './exchange.ts';
import { createProxy } from './proxy-adapter.ts';
import { WriteBatch } from './write-batch.ts';

export type { TransportAttempt } from './exchange.ts';
export { TransportError } from './transport-error.ts';

export interface Transport {
  /**
   * Resolves when the response's head has arrived; its body must be read or destroyed by the caller. Limits and the
   * signal go on to hold while it is read: a cut body is destroyed with an error and never ends cleanly.
   *
   * @throws TransportError always, and nothing else
   */
  send(attempt: TransportAttempt): Promise<UpstreamResponse>;
  /** Cuts every exchange that is still going on. */
  close(): void;
}

export function createTransport({ clock }: { readonly clock: Clock }): Transport {
  const live = new ShortLived<number, Exchange>();
  const writes = new WriteBatch();
  const proxy = createProxy();
  let started = 0;
  let isClosed = false;
  return {
    send(attempt) {
      const number = (started += 1);
      const exchange = new Exchange(attempt, {
        clock,
        writes,
        proxy,
        onOver: () => void live.delete(number),
      });
      if (isClosed) exchange.abort();
      if (!exchange.isOver) live.set(number, exchange);
      exchange.begin();
      return exchange.response;
    },
    close() {
      isClosed = true;
      for (const exchange of live.values()) exchange.abort();
    },
  };
}
