/**
 * Recorded responses of a HAR file (HTTP Archive 1.2), as far as limits are concerned.
 *
 * Owns: reading a file that other programs wrote; entries without a time, a URL or a status are left out. Does not own: what
 * responses mean. Invariant: credentials of the recording are never read.
 */
export interface RecordedResponse {
  /** Place in the file, from 1. */
  readonly entry: number;
  /** When the request was sent, milliseconds since the epoch. */
  readonly at: number;
  readonly method: string;
  readonly origin: string;
  /** Path with query. */
  readonly path: string;
  readonly status: number;
  /** Lower-case names; repeats joined by a comma. */
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string;
}

/** The file is no HAR. The message says what is wrong and what to do. */
export class HarError extends Error {}

type Json = Readonly<Record<string, unknown>>;

const section = (value: unknown): Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};

/** Responses in the order of their time. @throws HarError */
export function readHar(text: string): RecordedResponse[] {
  let root: unknown;
  try {
    root = JSON.parse(text);
  } catch {
    throw new HarError('is not JSON; save the recording as "HAR with content"');
  }
  const { entries } = section(section(root)['log']);
  if (!Array.isArray(entries))
    throw new HarError('has no log.entries; save the recording as "HAR with content"');
  const responses = entries.map((entry, index) => responseOf(section(entry), index + 1));
  return responses
    .filter((response) => response !== null)
    .toSorted((a, b) => a.at - b.at || a.entry - b.entry);
}

function responseOf(entry: Json, number: number): RecordedResponse | null {
  const request = section(entry['request']);
  const response = section(entry['response']);
  const at = Date.parse(String(entry['startedDateTime']));
  const url = URL.parse(String(request['url']));
  const status = response['status'];
  if (!Number.isFinite(at) || url === null || typeof status !== 'number' || status < 100) return null;
  const content = section(response['content'])['text'];
  return {
    entry: number,
    at,
    method: String(request['method']),
    origin: url.origin,
    path: url.pathname + url.search,
    status,
    fields: fieldsOf(response['headers']),
    body: typeof content === 'string' ? content.slice(0, 65_536) : '',
  };
}

function fieldsOf(headers: unknown): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  for (const header of Array.isArray(headers) ? headers : []) {
    const { name, value } = section(header);
    if (typeof name !== 'string' || typeof value !== 'string') continue;
    const earlier = fields.get(name.toLowerCase());
    fields.set(name.toLowerCase(), earlier === undefined ? value : `${earlier}, ${value}`);
  }
  return fields;
}
