/**
 * Loaded into the gateway's process by `burst.ts`: writes down in which order calls arrived and in which order they
 * were sent on, by the client's number in `x-nonce`. Owns nothing of the gateway: Node itself publishes both.
 */
import { subscribe } from 'node:diagnostics_channel';
import type { ClientRequest, IncomingMessage } from 'node:http';

export interface Orders {
  readonly arrived: readonly number[];
  readonly sent: readonly number[];
}

const arrived = new Set<number>();
const sent = new Set<number>();

subscribe('http.server.request.start', (message) => {
  // What Node publishes on this channel; the next one likewise.
  const { request } = message as { request: IncomingMessage };
  const nonce = request.headers['x-nonce'];
  if (nonce !== undefined) arrived.add(Number(nonce));
});
subscribe('http.client.request.start', (message) => {
  const { request } = message as { request: ClientRequest };
  const nonce = request.getHeader('x-nonce');
  if (nonce !== undefined) sent.add(Number(nonce));
});
process.on('message', () => {
  const orders: Orders = { arrived: [...arrived], sent: [...sent] };
  process.send?.(orders);
});
process.channel?.unref();
