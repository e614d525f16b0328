/**
 * Server-sent events to open pages. Owns the connections and their bound; does not own what is said. A page that reads
 * too slowly is cut (its browser reconnects and gets the whole picture), so that nobody makes this process buffer.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

/** Pages open at a time; the next one is asked to come back later. */
const maxPages = 32;
/** Unsent bytes at which a page counts as too slow. */
const maxUnsentBytes = 1_000_000;

export interface EventStream {
  /** Opens a stream to a page; `first` is sent at once. */
  open(request: IncomingMessage, response: ServerResponse, first: string): void;
  send(event: string): void;
  readonly size: number;
  close(): void;
}

/** One event in wire form. JSON has no line breaks, so one data line holds it. */
export const eventOf = (name: string, value: unknown): string =>
  `event: ${name}\ndata: ${JSON.stringify(value)}\n\n`;

export function createEventStream(): EventStream {
  const pages = new Set<ServerResponse>();
  return {
    open(request, response, first) {
      if (pages.size >= maxPages) {
        response.writeHead(503, { 'Retry-After': '30' }).end();
        return;
      }
      response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
      pages.add(response);
      const forget = () => pages.delete(response);
      response.on('close', forget);
      response.on('error', forget);
      request.on('error', forget);
      response.write(`retry: 2000\n\n${first}`);
    },
    send(event) {
      for (const page of pages) {
        if (page.writableLength > maxUnsentBytes) page.destroy();
        else page.write(event);
      }
    },
    get size() {
      return pages.size;
    },
    close() {
      for (const page of pages) page.end();
      pages.clear();
    },
  };
}
