/**
 * `sluice record`: who calls at one or several replicas for some seconds, as one recording. Owns: how recordings are merged: by time, in
 * order, with what any of the replicas knew of the limits. An interrupted recording is written as far as it has come.
 */
import { once } from 'node:events';
import { get as getHttp, type IncomingMessage } from 'node:http';
import { get as getHttps } from 'node:https';
import { createInterface } from 'node:readline';
import { recordingHeader, type RecordingHeader } from '../recording/format.ts';
import { endSignals, type CliIo } from './io.ts';
import { adminUrl, nobodyAt, refusedByAdmin } from './running.ts';

/** What one replica has sent so far. */
interface Part {
  readonly header: RecordingHeader;
  /** Each has a number `at`; otherwise as they came. */
  readonly calls: { readonly at: number }[];
  /** Resolves when it has ended: with what is wrong with it, or `null`. */
  readonly ended: Promise<string | null>;
}

/**
 * Prints the recording once it is complete. Exit code 1 where it is not.
 * @param options `admins`: `http://host:port` of the admin port of each replica
 */
export async function runRecord(
  { admins, seconds }: { readonly admins: readonly string[]; readonly seconds: number },
  io: CliIo,
): Promise<number> {
  const interrupted = endSignals().first.then(() => ['interrupted: calls after that are missing']);
  const begun = await Promise.all(admins.map((admin) => begin(admin, seconds)));
  const parts = begun.filter((part): part is Part => typeof part !== 'string');
  if (parts.length < begun.length) {
    io.err(begun.filter((part) => typeof part === 'string').join('\n'));
    return 1;
  }
  if (io.terminals.err) io.err(`Recording for ${seconds} s, and until the last of these calls has ended.`);
  const ends = await Promise.race([Promise.all(parts.map(({ ended }) => ended)), interrupted]);
  io.out(merged(parts).join('\n'));
  const troubles = ends.filter((trouble) => trouble !== null);
  for (const trouble of troubles) io.err(`The recording is incomplete: ${trouble}.`);
  return troubles.length === 0 ? 0 : 1;
}

/** What is wrong, where the replica does not record. */
async function begin(admin: string, seconds: number): Promise<Part | string> {
  const url = adminUrl(admin, `/recording?seconds=${seconds}`);
  // By no means with a time-out between two lines, which `fetch` has: for minutes nobody may call.
  const request = (url.protocol === 'https:' ? getHttps : getHttp)(url, { agent: false });
  const [response] = (await once(request, 'response').catch(() => [])) as IncomingMessage[];
  if (response === undefined) return nobodyAt(admin);
  if (response.statusCode !== 200) {
    response.destroy();
    return refusedByAdmin(admin, `The response has status ${response.statusCode}.`);
  }
  const calls: Part['calls'] = [];
  const { promise: header, resolve } = Promise.withResolvers<RecordingHeader | null>();
  const read = async (): Promise<string | null> => {
    try {
      for await (const line of createInterface({ input: response })) {
        const value: unknown = JSON.parse(line);
        const { data } = recordingHeader.safeParse(value);
        if (data !== undefined) resolve(data);
        else if (isCall(value)) calls.push(value);
        else return `${admin} ended it, because it was read too slowly`;
      }
    } catch {
      // What was cut off in the middle of a line: the response is not complete.
    }
    return response.complete ? null : `${admin} cut it off`;
  };
  response.on('error', () => {});
  const ended = read().finally(() => resolve(null));
  const first = await header;
  return first === null
    ? refusedByAdmin(admin, 'The response is no recording that this version can read.')
    : { header: first, calls, ended };
}

const isCall = (value: unknown): value is { readonly at: number } =>
  typeof value === 'object' && value !== null && 'at' in value && typeof value.at === 'number';

/** Lines of one recording. Times count from the earliest start. Clocks of replicas differ by what their machines' do. */
function merged(parts: readonly Part[]): readonly string[] {
  const start = Math.min(...parts.map(({ header }) => Date.parse(header.startedAt)));
  const calls = parts.flatMap(({ header, calls }) => {
    const laterMs = Date.parse(header.startedAt) - start;
    return calls.map((call) => ({ ...call, at: call.at + laterMs }));
  });
  const limits: RecordingHeader['limits'] = { upstreams: {}, workspaces: {} };
  for (const { header } of parts) {
    Object.assign(limits.workspaces, header.limits.workspaces);
    for (const [name, upstream] of Object.entries(header.limits.upstreams)) {
      const known = limits.upstreams[name];
      limits.upstreams[name] = { ...upstream, buckets: { ...known?.buckets, ...upstream.buckets } };
    }
  }
  const startedAt = new Date(start).toISOString();
  const first = { sluice: 'recording', version: 1, startedAt, limits };
  return [first, ...calls.toSorted((a, b) => a.at - b.at)].map((line) => JSON.stringify(line));
}
