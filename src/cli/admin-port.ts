/** Asking the admin port of a running Sluice, and reading what it streams. */
import { EventSourceParserStream } from 'eventsource-parser/stream';
import { UsageError, type CliIo } from './io.ts';

/** A path below the address of an admin port, which may itself lie below a path. @throws UsageError */
export function adminUrl(admin: string, path: string): URL {
  const url = URL.parse(`.${path}`, admin.replace(/\/*$/, '/'));
  if (url !== null && /^https?:$/.test(url.protocol)) return url;
  throw new UsageError('--admin is a URL such as http://127.0.0.1:9090.');
}

/** The response of success; `null` = there is none, which is said on standard error. */
export async function askAdmin(
  admin: string,
  { path, init = {} }: { readonly path: string; readonly init?: RequestInit },
  { err }: CliIo,
): Promise<Response | null> {
  const url = adminUrl(admin, path);
  const response = await fetch(url, init).catch(() => null);
  if (response?.ok === true) return response;
  if (response === null) err(nobodyAt(admin));
  else
    err(refusedByAdmin(admin, (await detailOf(response)) ?? `The response has status ${response.status}.`));
  return null;
}

/** What a problem document says. */
async function detailOf(response: Response): Promise<string | null> {
  const said: unknown = await response.json().catch(() => null);
  const isProblem = typeof said === 'object' && said !== null && 'detail' in said;
  return isProblem && typeof said.detail === 'string' ? said.detail : null;
}

export const nobodyAt = (admin: string): string =>
  `No Sluice answers at ${admin}: name its admin port with --admin http://HOST:PORT.`;

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
