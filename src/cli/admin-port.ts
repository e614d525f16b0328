/** Asking the admin port of a running Sluice, and reading what it streams. */
import { EventSourceParserStream } from 'eventsource-parser/stream';
import type { CliIo } from './io.ts';

/** A path below the address of an admin port, which may itself lie below a path. */
export const adminUrl = (admin: string, path: string): URL => new URL(`.${path}`, admin.replace(/\/*$/, '/'));

/** The response; `null` = nobody answers there, which is said on standard error. */
export async function askAdmin(
  admin: string,
  { path, init = {} }: { readonly path: string; readonly init?: RequestInit },
  io: CliIo,
): Promise<Response | null> {
  try {
    return await fetch(adminUrl(admin, path), init);
  } catch {
    io.err(`No Sluice answers at ${admin}: name its admin port with --admin http://HOST:PORT.`);
    return null;
  }
}

/** Says that the response is none of an admin port, or a refusal. */
export const refusedByAdmin = (admin: string, said: string): string =>
  `${said}\nAsked was ${admin}: --admin http://HOST:PORT names the admin port of a Sluice.`;

/** The data of the server-sent events of this name, as JSON values, until the stream ends, in whatever way. */
export async function* eventsOf(body: ReadableStream<Uint8Array>, name: string): AsyncGenerator<unknown> {
  const events = body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  try {
    for await (const { event, data } of events) if (event === name) yield JSON.parse(data);
  } catch {
    // A process that ends cuts its connections.
  }
}
