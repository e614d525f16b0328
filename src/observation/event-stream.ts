/**
 * Server-sent events to whoever listens: open pages, `sluice tail`. Owns the connections and their bound; does not own what is said. A
 * listener that reads too slowly is cut (a browser reconnects and gets the whole picture), so that nobody makes this process buffer.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

/** Listeners at a time; the next one is asked to come back later. */
const maxListeners = 32;
/** Unsent bytes at which a listener counts as too slow. */
const maxUnsentBytes = 1_000_000;

/** What keeps a connection open on which nothing is said: proxies and clients end those after minutes. */
export const heartbeat = ':\n\n';

/** One event in wire form. JSON has no line breaks, so one data line holds it. */
export const eventOf = (name: string, value: unknown): string =>
  `event: ${name}\ndata: ${JSON.stringify(value)}\n\n`;

export function createEventStream() {
  const listeners = new Set<ServerResponse>();
  return {
    /** Those that are there now. */
    listeners: listeners as ReadonlySet<ServerResponse>,
    /** Opens a stream to a listener; `first` is sent at once. */
    open(request: IncomingMessage, response: ServerResponse, first: string): void {
      if (listeners.size >= maxListeners) {
        response.writeHead(503, { 'Retry-After': '30' }).end();
        return;
      }
      // A reverse proxy in front of the admin port passes events on as they come.
      const fields = { 'Cache-Control': 'no-store', 'X-Accel-Buffering': 'no' };
      response.writeHead(200, { 'Content-Type': 'text/event-stream', ...fields });
      listeners.add(response);
      const forget = () => listeners.delete(response);
      response.on('close', forget);
      response.on('error', forget);
      request.on('error', forget);
      response.write(`retry: 2000\n\n${first}`);
    },
    send(event: string): void {
      for (const listener of listeners) {
        if (listener.writableLength > maxUnsentBytes) listener.destroy();
        else listener.write(event);
      }
    },
    close(): void {
      for (const listener of listeners) listener.end();
      listeners.clear();
    },
  };
}
