/**
 * A rehearsal against what then happens, over three replicas: they take calls under one configuration while `sluice record` listens, and take
 * the same calls again under another one, under which `sluice rehearse` has run the recording. Each upstream is a change of its own; all
 * of them are used at the same time, by two workspaces that share its credential.
 *
 * Each rehearsed call comes at the time at which it came when it was sent again: no two runs of processes send at the same times, and
 * half a second decides which of two calls fits into a wait. The workspaces weigh differently: of two that weigh the same and send in turn, who
 * is first would hang on a first call, which a gateway that has just started counts under a limit that it has not learned yet.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import type { RecordedCall } from '../../src/recording/format.ts';
import { farApart, lived, readRecording } from '../../test/rehearsal/lived.ts';
import { begun } from '../../test/support/command.ts';
import { pause, type CallResponse } from '../../test/support/redis-fleet.ts';
import type { Report } from '../../tools/rehearse/figures.ts';
import { startFleet } from './fleet.ts';
import { drive } from './load.ts';
import { newFolder, startServer, startSimulator, stopServer, until, type Simulator } from './processes.ts';
import { noneLost, summary, type Row, type Scenario } from './row.ts';
import { wait } from './worlds.ts';

interface Change {
  readonly upstream: string;
  readonly kind: 'language-model' | 'commerce' | 'generic';
  /** What the simulator allows a minute, and how long it takes. Milliseconds. */
  readonly perMinute?: { readonly requests?: number; readonly tokens?: number };
  readonly serviceMs?: number;
  /** YAML of the upstream beside origin and credential, before and after. */
  readonly before: string;
  readonly after: string;
  /** Every call may wait for so long. Seconds. */
  readonly asks?: number;
  /** The upstream takes no calls for some seconds. */
  readonly isClosed?: true;
}

const plenty = 1_000_000;
/** Limits are such that no call would wait for just as long as it may. */
const changes: readonly Change[] = [
  {
    upstream: 'requests',
    kind: 'language-model',
    perMinute: { requests: 30 },
    before: 'limits: {}',
    after: 'limits: { maxWaitSeconds: 15 }',
  },
  {
    upstream: 'tokens',
    kind: 'language-model',
    perMinute: { tokens: 2_000 },
    before: 'limits: {}',
    after: 'limits: { maxWaitSeconds: 20 }',
  },
  {
    upstream: 'serialized',
    kind: 'commerce',
    serviceMs: 2_000,
    before: 'limits: { requestsPerMinute: none, maxInFlight: 3 }',
    after: 'limits: { requestsPerMinute: none }',
  },
  {
    upstream: 'in-flight',
    kind: 'generic',
    serviceMs: 2_000,
    before: 'limits: { requestsPerMinute: none }',
    after: 'limits: { requestsPerMinute: none, maxInFlightTotal: 2 }',
  },
  {
    upstream: 'windows',
    kind: 'generic',
    before: 'speaks: { windows: [{ requests: 50, seconds: 1 }] }',
    after: 'speaks: { windows: [{ requests: 4, seconds: 4 }, { requests: 40, seconds: 60 }] }',
  },
  {
    upstream: 'lowered',
    kind: 'generic',
    before: 'limits: { requestsPerMinute: 600 }',
    after: 'limits: { requestsPerMinute: 15 }',
  },
  {
    upstream: 'raised',
    kind: 'generic',
    before: 'limits: { requestsPerMinute: 10, maxWaitSeconds: 5 }',
    after: 'limits: { requestsPerMinute: 21, maxWaitSeconds: 5 }',
  },
  {
    upstream: 'own',
    kind: 'generic',
    before: 'limits: { requestsPerMinute: 600 }',
    after: 'limits: { requestsPerMinute: 600 }',
  },
  {
    upstream: 'asking',
    kind: 'generic',
    asks: 50,
    before: 'limits: { requestsPerMinute: 600 }',
    after: 'limits: { requestsPerMinute: 13, maxWaitSeconds: 5 }',
  },
  {
    upstream: 'closed',
    kind: 'language-model',
    isClosed: true,
    before: 'limits: { requestsPerMinute: 600 }',
    after: 'limits: { requestsPerMinute: 600, maxWaitSeconds: 3 }',
  },
];

/** Of `own`, afterwards. */
const ownCeiling = '    requestsPerMinute: { own: 12 }';

const callsOfEach = 60;
const everyMs = 500;
/** Between two calls, so that it is certain which of them come before. */
const closedFromMs = 10_250;
const closedForMs = 6_000;
/** Processes that have just started compile for a second or two. */
const warmMs = 5_000;
const recordSeconds = Math.ceil((callsOfEach * everyMs) / 1_000) + 15;
const keys = { acme: createKey(), bell: createKey() };
const grainMs = 100;

const simulatorOf = ({ kind, perMinute = {}, serviceMs = 150 }: Change): Promise<Simulator> =>
  kind === 'commerce'
    ? startSimulator('commerce', { latency: { minMs: serviceMs, maxMs: serviceMs } })
    : startSimulator('language-model', {
        models: { 'gpt-4o': { rpm: perMinute.requests ?? plenty, tpm: perMinute.tokens ?? plenty } },
        latency: { baseMs: serviceMs, perTokenMs: 0, jitter: 0 },
      });

interface Run {
  readonly recording: string;
  /** Of its configuration. */
  readonly path: string;
  readonly responses: readonly CallResponse[];
}

/** The same calls under one of the configurations. */
async function runUnder(which: 'before' | 'after', simulators: readonly Simulator[]): Promise<Run> {
  const redis = await startServer();
  const upstreams = changes.map(({ upstream, kind, ...change }, n) => {
    const credential =
      kind === 'commerce'
        ? '{ header: x-shopify-access-token, value: shpat_sim }'
        : '{ header: authorization, value: "Bearer sk-sim" }';
    return `  ${upstream}: { kind: ${kind}, origins: ["${simulators[n]?.url}"], allowPrivateAddresses: true, credential: ${credential}, ${change[which]} }`;
  });
  const yaml = `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }
privacy: { labelKey: "a label key for tests only" }
redis: { url: "${redis.url}", replicas: 3 }
upstreams:
${upstreams.join('\n')}
workspaces:
  acme:
    weight: 2
    keys: ["${keys.acme.hash}"]
${which === 'after' ? ownCeiling : ''}
  bell:
    keys: ["${keys.bell.hash}"]
`;
  const path = join(await newFolder(), 'sluice.yaml');
  await writeFile(path, yaml);
  const fleet = await startFleet(3, {
    keys: { acme: keys.acme.key, bell: keys.bell.key },
    yaml: () => yaml,
  });
  await pause(warmMs);
  const admins = fleet.gateways.flatMap(({ adminUrl }) => ['--admin', adminUrl]);
  const record = begun(['record', '--seconds', String(recordSeconds), ...admins], { out: null, err: true });
  await until(() => Promise.resolve(record.err.length > 0), warmMs);
  const responses = await Promise.all(
    changes.map(({ upstream, kind, asks, isClosed }, n) =>
      drive({
        to: fleet.gateways,
        calls: callsOfEach,
        everyMs,
        path: `/via/${upstream}/${kind === 'commerce' ? 'admin/api/2026-10/orders.json' : 'v1/chat/completions'}`,
        key: (call) => fleet.keys[call % 2 === 0 ? 'acme' : 'bell'] ?? '',
        name: upstream,
        ...(asks === undefined ? {} : { headers: wait(asks) }),
        ...(kind === 'commerce'
          ? {}
          : {
              body: { model: 'gpt-4o', max_tokens: 100, messages: [{ role: 'user', content: 'hello' }] },
            }),
        meanwhile: async () => {
          if (isClosed !== true) return;
          await pause(closedFromMs);
          await simulators[n]?.configure({ close: { forMs: closedForMs } });
        },
      }),
    ),
  );
  await record.ended;
  await fleet.stop();
  await stopServer(redis);
  return { recording: record.out.join('\n'), path, responses: responses.flat() };
}

async function rehearse(before: Run, after: Run): Promise<Report> {
  const traffic = join(await newFolder(), 'traffic.jsonl');
  await writeFile(traffic, atTimesOf(after, before));
  const { out, err, ended } = begun(
    ['rehearse', '--traffic', traffic, '--config', after.path, '--replicas', '3', '--json'],
    { out: null, err: false },
  );
  if ((await ended) !== 0) throw new Error(`the rehearsal failed: ${err.join(' ')}`);
  return (JSON.parse(out.join('\n')) as { readonly after: Report }).after;
}

/** The calls of the one recording, each of which comes when the same call of the other one did. */
function atTimesOf({ recording: times }: Run, { recording }: Run): string {
  const [first = '', ...lines] = recording.trim().split('\n');
  const calls = lines.map((line) => JSON.parse(line) as RecordedCall);
  const others = Map.groupBy(readRecording(times).calls, ({ upstream }) => upstream);
  const moved = [...Map.groupBy(calls, ({ upstream }) => upstream)].flatMap(([upstream, own]) =>
    own.map((call, n) => ({ ...call, at: others.get(upstream)?.[n]?.at ?? call.at })),
  );
  return [first, ...moved.map((call) => JSON.stringify(call))].join('\n');
}

const inWords = ({ upstreams }: Report, name: string): string => {
  const { waitMs, refused } = upstreams[name] ?? { waitMs: { p50: null, p95: null }, refused: null };
  return `${waitMs.p50} / ${waitMs.p95} ms, ${refused} refused`;
};

export const rehearsal: Scenario = {
  name: `${changes.length} changes rehearsed, and then made`,
  async run(): Promise<Row> {
    const simulators = await Promise.all(changes.map(simulatorOf));
    const before = await runUnder('before', simulators);
    for (const { url } of simulators) await fetch(`${url}/__sim/reset`, { method: 'POST' });
    const after = await runUnder('after', simulators);
    for (const simulator of simulators) simulator.stop();
    const [real, rehearsed] = [lived(after.recording), await rehearse(before, after)];
    const rows = changes.map(({ upstream }) => {
      const figures = real.upstreams[upstream];
      const far =
        figures === undefined
          ? ['no call was recorded']
          : farApart(figures, rehearsed.upstreams[upstream], grainMs);
      const words = `${upstream}: ${inWords(real, upstream)}, rehearsed ${inWords(rehearsed, upstream)}`;
      return { isFar: far.length > 0, words };
    });
    const far = rows.filter(({ isFar }) => isFar).length;
    const all = [...before.responses, ...after.responses];
    return {
      holds: true,
      holdsWhenQuiet: far === 0 && noneLost(all),
      figures: `${far} of ${rows.length} apart by more than 5 % and ${grainMs} ms (p50 / p95 of waits); ${rows.map(({ words, isFar }) => `${isFar ? 'APART ' : ''}${words}`).join('; ')}; ${summary(all)}`,
    };
  },
};
