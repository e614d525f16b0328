/** `sluice rehearse`: what it prints, writes and ends with, for recordings in files. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { workspaceLabel } from '../../src/identity.ts';
import type { RecordedCall, RecordingHeader } from '../../src/recording/format.ts';
import type { Report } from '../../tools/rehearse/figures.ts';
import { begun, ran } from '../support/command.ts';

const labelKey = 'a label key for tests only';
const acme = workspaceLabel(labelKey, 'acme');
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'rehearse-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

type RecordedUpstream = RecordingHeader['limits']['upstreams'][string];
const upstream: RecordedUpstream = {
  ceiling: { perMinute: 60, perDay: null },
  isDefault: { perMinute: false, perDay: true },
  meters: [],
  probe: 0,
  maxInFlight: null,
  maxInFlightTotal: null,
  maxQueued: 1_000,
  reserveMs: 10_000,
  maxReserved: 1_000,
  maxWaitMs: 75_000,
  operations: {},
  buckets: {},
};

const header = (upstreams: RecordingHeader['limits']['upstreams'] = { api: upstream }): RecordingHeader => ({
  sluice: 'recording',
  version: 1,
  startedAt: '2026-01-01T00:00:00.000Z',
  limits: { upstreams, workspaces: {} },
});

const call = (changes: Partial<RecordedCall> = {}): RecordedCall => ({
  at: 0,
  upstream: 'api',
  bucket: 'b_0000000000000001',
  workspace: acme,
  caller: null,
  urgency: 3,
  costs: { requests: 1 },
  charged: { requests: 1 },
  serviceMs: 100,
  maxWaitMs: 75_000,
  waitedMs: 0,
  outcome: 'ok',
  ...changes,
});

/** A burst of 90 calls, one each 100 ms, which the recorded ceiling of 60 a minute lets leave in 60.1 s and more. */
const burst = Array.from({ length: 90 }, (_, n) => call({ at: n * 100 }));

function file(name: string, content: string | Buffer): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}
const linesOf = (calls: readonly RecordedCall[], first: unknown = header()): string =>
  [first, ...calls].map((line) => JSON.stringify(line)).join('\n');
const recording = (calls: readonly RecordedCall[], first?: unknown): string =>
  file('recording.jsonl', linesOf(calls, first));

const config = (api: string, key = labelKey): string =>
  file(
    'sluice.yaml',
    `privacy: { labelKey: "${key}" }
upstreams: { api: { origins: ["https://api.example.com"], ${api} } }
workspaces: { acme: { keys: [] } }
`,
  );

async function rehearse(...args: readonly string[]) {
  const { out, err, ended } = begun(['rehearse', ...args]);
  const code = await ended;
  return { code, out: out.join('\n'), err: err.join('\n') };
}

interface Rehearsed {
  readonly calls?: readonly RecordedCall[];
  readonly recorded?: Partial<RecordedUpstream>;
  /** The configuration's upstream; left out, there is no configuration. */
  readonly api?: string;
  readonly args?: readonly string[];
}

async function figuresOf({ calls = burst, recorded = {}, api, args = [] }: Rehearsed) {
  const traffic = recording(calls, header({ api: { ...upstream, ...recorded } }));
  const configured = api === undefined ? [] : ['--config', config(api)];
  const { out } = await rehearse('--traffic', traffic, ...configured, ...args, '--json');
  const { before, after } = JSON.parse(out) as { before: Report; after: Report };
  const of = ({ upstreams }: Report) => upstreams['api'] ?? missing();
  return { before: of(before), after: of(after), workspaces: after.workspaces };
}
function missing(): never {
  throw new Error('no figures of the upstream');
}
const limits = (text: string): string => `limits: { ${text} }`;
const noCeiling = { ceiling: { perMinute: null, perDay: null } };
const requests = (limit: number) => ({ meter: 'requests' as const, limit, windowMs: 60_000 });

test('the limits of the recording hold before, and those of the configuration afterwards', async () => {
  const { before, after, workspaces } = await figuresOf({ api: limits('requestsPerMinute: 90') });
  expect(before).toEqual({
    calls: 90,
    refused: 0,
    waitMs: { p50: 0, p95: expect.any(Number), max: expect.any(Number) },
    busiestMinute: 60,
    utilisation: expect.any(Number),
  });
  // The 61st arrived after 6 s, and left a minute after the first, with the margin of the ceiling.
  expect(before.waitMs.max).toBeGreaterThan(54_000);
  expect(before.waitMs.max).toBeLessThan(55_000);
  expect(after.waitMs).toEqual({ p50: 0, p95: 0, max: 0 });
  expect(workspaces).toEqual({ [acme]: after });
});

test('without a configuration the recorded limits hold, for as many calls as are asked for', async () => {
  const { before, after } = await figuresOf({ args: ['--times', '2'] });
  expect([before.calls, after.calls, before.refused, after.refused]).toEqual([90, 180, 0, 60]);
});

test('a limit that the configuration does not write stays as recorded, and one that it lifts does not hold', async () => {
  const asBefore = await figuresOf({ api: limits('maxQueued: 1000') });
  expect(asBefore.after).toEqual(asBefore.before);
  const lifted = await figuresOf({ api: limits('requestsPerMinute: none') });
  expect(lifted.after).toMatchObject({ waitMs: { max: 0 }, utilisation: null });
});

test('what responses had taught holds on where the configuration writes the same number as before', async () => {
  const learnt = [call({ limits: [{ ...requests(30), isStated: true }] }), ...burst.slice(1)];
  const recorded = { meters: [requests(60)] };
  const same = await figuresOf({ calls: learnt, recorded, api: limits('requestsPerMinute: 60') });
  expect(same.after).toEqual(same.before);
  expect(same.before.refused).toBeGreaterThan(0);
  const other = await figuresOf({ calls: learnt, recorded, api: limits('requestsPerMinute: 120') });
  expect(other.after).toMatchObject({ refused: 0, waitMs: { max: 0 } });
});

test('calls of an operation are rehearsed under its own windows, before and after', async () => {
  const search = 'GET /search/{}';
  const rolling = (limit: number) => [{ ...requests(limit), counts: 'rolling' as const }];
  const recorded = { ...noCeiling, meters: rolling(1_000), operations: { [search]: rolling(30) } };
  const windows = `[{ requests: 20, seconds: 60 }, { requests: 60, seconds: 60, calls: '${search}' }]`;
  const served = async (calls: readonly RecordedCall[]) => {
    const { before, after } = await figuresOf({ calls, recorded, api: `speaks: { windows: ${windows} }` });
    return [before, after].map(({ calls: all, refused }) => all - refused);
  };
  // Within the wait of a minute and a quarter two windows begin.
  expect(await served(burst.map((one) => ({ ...one, operation: search })))).toEqual([60, 90]);
  expect(await served(burst.map((one) => ({ ...one, bucket: 'b_0000000000000002' })))).toEqual([90, 40]);
});

test('a quota begins as full as it was when the recording began', async () => {
  const longest = async (used: { used?: number }): Promise<number | null> => {
    const buckets = { b_0000000000000001: [{ ...requests(60), ...used }] };
    const recorded = { ...noCeiling, meters: [requests(60)], buckets };
    return (await figuresOf({ calls: burst.slice(0, 10), recorded })).before.waitMs.max;
  };
  expect(await longest({})).toBe(0);
  // A call a second.
  expect(await longest({ used: 60 })).toBeGreaterThan(8_000);
});

test('what the configuration does not have is named, and keeps what was recorded', async () => {
  const stranger = call({ upstream: 'old', workspace: 'w_1' });
  const traffic = recording([...burst, stranger, call({ serviceMs: null })]);
  const with_ = (path: string) => rehearse('--traffic', traffic, '--config', path);
  const { err, out } = await with_(config(limits('requestsPerMinute: 90')));
  expect(err).toContain('old: no upstream of the configuration');
  expect(err).toContain('w_1 of the recording: none of the configuration');
  expect(err).toContain('1 calls were answered without being sent');
  expect(out).toContain(acme);
  expect(out).not.toContain('acme');
  const otherKey = config(limits('requestsPerMinute: 90'), 'another label key, as long');
  expect((await with_(otherKey)).err).toContain('same privacy.labelKey');
});

test('clients that left while they waited leave again, unless they are sent before', async () => {
  const left = { outcome: 'client_gone', serviceMs: null, charged: {}, waitedMs: 5_000 } as const;
  const { before } = await figuresOf({ calls: burst.map((each) => ({ ...each, ...left })) });
  expect(before).toMatchObject({ calls: 90, refused: 0, busiestMinute: 60, waitMs: { max: 0 } });
});

test('times with fractions, which a time of day cannot tell apart, end', async () => {
  const at = (n: number): number => n * 511.1 + ((n * 37) % 10) / 10;
  const calls = burst.map((each, n) => ({ ...each, at: at(n), serviceMs: 393.7 }));
  const { before } = await figuresOf({ calls, args: ['--times', '2'] });
  expect(before).toMatchObject({ calls: 90, refused: 0 });
});

test('equal rehearsals are equal, over several replicas as well, and a compressed recording is read', async () => {
  const traffic = file('recording.jsonl.gz', gzipSync(linesOf(burst)));
  const once = await rehearse('--traffic', traffic, '--replicas', '3', '--json');
  expect((await rehearse('--traffic', traffic, '--replicas', '3', '--json')).out).toBe(once.out);
  const { before, after } = JSON.parse(once.out) as { before: Report; after: Report };
  expect(after.upstreams['api']?.busiestMinute).toBe(before.upstreams['api']?.busiestMinute);
});

// Long recordings are rehearsed on two threads.
test('of very many calls before and after are what they are of few', async () => {
  const calls = Array.from({ length: 5_000 }, (_, n) => call({ at: n * 30, serviceMs: 10 }));
  const { before, after } = await figuresOf({ calls });
  expect(before).toEqual(after);
  expect(before).toMatchObject({ calls: 5_000, busiestMinute: 60 });
});

test('a picture shows a row for each upstream', async () => {
  const svg = join(folder, 'picture.svg');
  const traffic = recording([...burst, call({ upstream: 'a<b' })]);
  await rehearse('--traffic', traffic, '--config', config(limits('requestsPerMinute: 20')), '--svg', svg);
  const picture = readFileSync(svg, 'utf8');
  expect(picture).toMatch(/^<svg xmlns=/);
  expect(picture.match(/<polyline/g)).toHaveLength(4);
  expect(picture).toContain('a&lt;b');
  const nowhere = join(folder, 'nowhere', 'picture.svg');
  expect(await rehearse('--traffic', traffic, '--svg', nowhere)).toMatchObject({
    code: 2,
    err: expect.stringContaining(nowhere),
  });
});

describe('exit codes', () => {
  test.each([
    ['refused > 0', 0],
    ['refused >= 0', 1],
    ['p95 > 10', 1],
    ['p95 > 100', 0],
    ['max < 1000', 1],
  ])('--fail-if %j: %d', async (condition, code) => {
    const result = await rehearse('--traffic', recording(burst), '--fail-if', condition);
    expect([result.code, result.err.includes(condition)]).toEqual([code, code === 1]);
  });

  test.each([
    [[], /--traffic is missing/],
    [['--traffic', 'x', '--times', '0'], /--times is a whole number/],
    [['--traffic', 'x', '--replicas', '1.5'], /--replicas is a whole number/],
    [['--traffic', 'x', '--fail-if', 'p99 > 3'], /--fail-if is like/],
  ])('%j is a mistake', async (args, said) =>
    expect(await ran(['rehearse', ...args])).toMatchObject({ code: 2, err: expect.stringMatching(said) }),
  );

  test.each([
    ['nothing', '', /is empty/],
    ['no JSON', 'nonsense', /is no recording: is no JSON/],
    ['another version', '{"sluice":"recording","version":2}', /is no recording: version/],
    ['a line that is no call', `${JSON.stringify(header())}\n{"at":-1}`, /line 2: at:/],
  ])('a file with %s cannot be rehearsed', async (_what, content, said) => {
    const result = await rehearse('--traffic', file('broken.jsonl', content));
    expect(result).toMatchObject({ code: 2, err: expect.stringMatching(said) });
  });

  test('nor can one that is not there, or one with a configuration that cannot be used', async () => {
    expect(await rehearse('--traffic', join(folder, 'nothing'))).toMatchObject({ code: 2 });
    const broken = config(limits('requestsPerMinute: -1'));
    expect(await rehearse('--traffic', recording(burst), '--config', broken)).toMatchObject({ code: 2 });
  });
});

test('a recording that was ended early is rehearsed, and said to be incomplete', async () => {
  const ended = file('ended.jsonl', `${linesOf(burst)}\n{"sluice":"recording","ended":"reader_too_slow"}\n`);
  const { code, err } = await rehearse('--traffic', ended);
  expect([code, err]).toEqual([0, expect.stringContaining('ended early')]);
});

test('the example of a workflow rehearses with options that there are', async () => {
  const workflow = readFileSync('examples/rehearse-pull-request.yaml', 'utf8');
  const [, options = ''] = /npx --yes sluice rehearse (.*) > figures\.txt/.exec(workflow) ?? [];
  const args = options.match(/'[^']*'|\S+/g) ?? [];
  const { err } = await ran(['rehearse', ...args.map((arg) => arg.replaceAll("'", ''))]);
  expect(err).toMatch(/^sluice\.yaml: 1 problem/);
});
