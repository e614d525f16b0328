/**
 * `sluice record`: who calls at one or several replicas for some seconds, as one recording. Owns: how recordings are merged: by time, in
 * order, with what any of the replicas knew of the limits. An interrupted recording is written as far as it has come.
 */
import { get as getHttp, type IncomingMessage } from 'node:http';
import { get as getHttps } from 'node:https';
import { createInterface } from 'node:readline';
import { recordingHeader, type RecordingHeader } from '../recording/format.ts';
import { adminUrl, refusedByAdmin } from './admin-port.ts';
import { endSignals } from './end-signal.ts';
import type { CliIo } from './io.ts';

export interface RecordCommand {
  /** `http://host:port` of the admin port of each replica. */
  readonly admins: readonly string[];
  readonly seconds: number;
}

/** What one replica has sent so far. */
interface Part {
  readonly header: RecordingHeader;
  /** Each has a number `at`; otherwise as they came. */
  readonly calls: { readonly at: number }[];
  /** Resolves when it has ended: with what is wrong with it, or `null`. */
  readonly ended: Promise<string | null>;
}

/** Prints the recording once it is complete. Exit code 1 where it is not. */
export async function runRecord({ admins, seconds }: RecordCommand, io: CliIo): Promise<number> {
  const interrupted = endSignals().first.then(() => 'interrupted: calls after that are missing');
  const begun = await Promise.all(admins.map((admin) => begin(admin, seconds)));
  const parts = begun.filter((part): part is Part => typeof part !== 'string');
  const faults = begun.filter((part) => typeof part === 'string');
  if (faults.length > 0) {
    io.err(faults.join('\n'));
    for (const { ended } of parts) void ended;
    return 1;
  }
  if (io.terminals.err) io.err(`Recording for ${seconds} s, and until the last of these calls has ended.`);
  const ends = await Promise.race([Promise.all(parts.map(({ ended }) => ended)), interrupted]);
  const [header, calls] = merged(parts);
  io.out([header, ...calls].map((line) => JSON.stringify(line)).join('\n'));
  const troubles = [ends].flat().filter((trouble) => trouble !== null);
  for (const trouble of troubles) io.err(`The recording is incomplete: ${trouble}.`);
  return troubles.length === 0 ? 0 : 1;
}

/** What is wrong, where the replica does not record. */
async function begin(admin: string, seconds: number): Promise<Part | string> {
  const response = await ask(adminUrl(admin, `/recording?seconds=${seconds}`));
  if (response === null)
    return `No Sluice answers at ${admin}: name its admin port with --admin http://HOST:PORT.`;
  if (response.statusCode !== 200) {
    response.destroy();
    return refusedByAdmin(admin, `The response has status ${response.statusCode}.`);
  }
  const calls: Part['calls'] = [];
  const { promise: header, resolve } = Promise.withResolvers<RecordingHeader | null>();
  const ended = readLines(response, (value) => {
    const read = recordingHeader.safeParse(value);
    if (read.success) resolve(read.data);
    else if (isCall(value)) calls.push(value);
    else return `${admin} ended it, because it was read too slowly`;
    return null;
  }).finally(() => resolve(null));
  const first = await header;
  if (first === null)
    return refusedByAdmin(admin, 'The response is no recording that this version can read.');
  return {
    header: first,
    calls,
    ended: ended.then((fault) => fault ?? (response.complete ? null : `${admin} cut it off`)),
  };
}

const isCall = (value: unknown): value is { readonly at: number } =>
  typeof value === 'object' && value !== null && 'at' in value && typeof value.at === 'number';

/** By no means with a time-out between two lines, which `fetch` has: for minutes nobody may call. */
const ask = (url: URL): Promise<IncomingMessage | null> =>
  new Promise((resolve) => {
    const get = url.protocol === 'https:' ? getHttps : getHttp;
    get(url, { agent: false }, resolve).on('error', () => resolve(null));
  });

/** Resolves with the first fault that `take` finds, or `null`. */
async function readLines(
  response: IncomingMessage,
  take: (value: unknown) => string | null,
): Promise<string | null> {
  response.on('error', () => {});
  let fault: string | null = null;
  try {
    for await (const line of createInterface({ input: response })) fault ??= take(JSON.parse(line));
  } catch {
    // What was cut off in the middle of a line: the response is not complete.
  }
  return fault;
}

/** Times count from the earliest start. Clocks of replicas differ by what their machines' do. */
function merged(parts: readonly Part[]): [RecordingHeader, readonly { readonly at: number }[]] {
  const startsOf = parts.map(({ header }) => Date.parse(header.startedAt));
  const start = Math.min(...startsOf);
  const calls = parts.flatMap(({ calls }, index) => {
    const laterMs = (startsOf[index] ?? start) - start;
    return calls.map((call) => ({ ...call, at: call.at + laterMs }));
  });
  const headers = parts.map(({ header }) => header);
  const limits: RecordingHeader['limits'] = { upstreams: {}, workspaces: {} };
  for (const { limits: own } of headers) {
    Object.assign(limits.workspaces, own.workspaces);
    for (const [name, upstream] of Object.entries(own.upstreams)) {
      const known = limits.upstreams[name];
      limits.upstreams[name] = { ...upstream, buckets: { ...known?.buckets, ...upstream.buckets } };
    }
  }
  const header = {
    sluice: 'recording',
    version: 1,
    startedAt: new Date(start).toISOString(),
    limits,
  } as const;
  return [header, calls.toSorted((a, b) => a.at - b.at)];
}
