/**
 * In which order calls arrived at Sluice and in which they were written upstream, as Node itself tells. What the upstream
 * reads first of several connections is its own affair.
 */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest, IncomingMessage } from 'node:http';

export function watchOrder() {
  /** `X-Nonce` of the calls through `/via/`, and of each one's first sending. */
  const [arrived, sent]: [string[], string[]] = [[], []];
  const noteArrival = (message: unknown): void => {
    // What Node publishes on this channel; the next one likewise.
    const { request } = message as { request: IncomingMessage };
    if (request.url?.startsWith('/via/') === true) arrived.push(String(request.headers['x-nonce']));
  };
  const noteSending = (message: unknown): void => {
    const { request } = message as { request: ClientRequest };
    const nonce = String(request.getHeader('x-nonce'));
    if (!sent.includes(nonce)) sent.push(nonce);
  };
  subscribe('http.server.request.start', noteArrival);
  subscribe('http.client.request.start', noteSending);
  return {
    arrived,
    sent,
    stop() {
      unsubscribe('http.server.request.start', noteArrival);
      unsubscribe('http.client.request.start', noteSending);
    },
  };
}
