/** What a rehearsal says of recorded calls under other limits, against what the gateway does with the same calls under these: both in virtual time. */
import { describe, expect, test } from '@jest/globals';
import { recordedCall, recordingHeader } from '../../src/recording/format.ts';
import { asCounted } from '../../tools/rehearse/charges.ts';
import { reportOf, type Figures, type Report } from '../../tools/rehearse/figures.ts';
import { rehearse, type RehearsedCall } from '../../tools/rehearse/rehearse.ts';
import { configuredWorld, recordedLimits, recordedWorld } from '../../tools/rehearse/world.ts';
import { playAtGateway, settingsOf, type Arrival, type Scene } from './gateway-in-virtual-time.ts';

/** The lines of a recording, its calls in order of arrival. */
function readRecording(text: string) {
  const [first = '', ...lines] = text.trim().split('\n');
  const recorded = lines.map((line) => recordedCall.parse(JSON.parse(line))).toSorted((a, b) => a.at - b.at);
  const header = recordingHeader.parse(JSON.parse(first));
  const calls = asCounted(header, recorded);
  return { header, calls, limits: recordedLimits(header, calls) };
}

async function rehearsed(text: string, scene: Scene, times: number): Promise<Report> {
  const { header, calls, limits } = readRecording(text);
  const world = configuredWorld(limits, settingsOf(scene));
  return reportOf(await rehearse(calls, { world, times, startsAt: Date.parse(header.startedAt) }), world);
}

/** What the gateway did with the calls of a recording, in the form of a rehearsal. */
function lived(text: string): Report {
  const { calls, limits } = readRecording(text);
  const done = [...Map.groupBy(calls, (call) => call.reservation ?? call).values()].flatMap((attempts) => {
    const [first, last] = [attempts[0], attempts.at(-1)];
    if (first === undefined || last === undefined) return [];
    const kind = last.serviceMs === null || last.outcome === 'throttled' ? 'refused' : 'sent';
    const fate = { kind, afterMs: last.at + last.waitedMs - first.at } as const;
    return [{ call: { ...last, at: first.at }, fate } satisfies RehearsedCall];
  });
  return reportOf(done, recordedWorld(limits));
}

/** The figures that are more than 5 % and 100 ms, or one refusal, apart. */
function farApart(real: Figures, said: Figures | undefined): string[] {
  const times = (['p50', 'p95'] as const).map((name) => {
    const ms = real.waitMs[name] ?? 0;
    return [name, ms, said?.waitMs[name] ?? 0, Math.max(100, ms / 20)] as const;
  });
  const pairs = [
    ['calls', real.calls, said?.calls ?? 0, 0] as const,
    ...times,
    ['refused', real.refused, said?.refused ?? 0, Math.max(1, real.refused / 20)] as const,
  ];
  return pairs
    .filter(([, is, told, apart]) => Math.abs(is - told) > apart)
    .map(([figure, is, told]) => `${figure}: ${is} at the gateway, ${told} in the rehearsal`);
}

interface Change {
  readonly name: string;
  readonly before: Scene;
  /** Left out: the same, with so many times the calls. */
  readonly after?: Scene;
  readonly arrivals: readonly Arrival[];
  readonly times?: number;
}

const minute = (limit: number) => ({ limit, windowMs: 60_000 });

/** All workspaces share one quota. */
const shared = 'credential: { header: authorization, value: "Bearer x" }';
const one = { acme: '' };
const three = { acme: '', bell: '', cobalt: '' };
const weighed = { ...three, acme: 'weight: 4', bell: 'weight: 2' };
const names = Object.keys(three);

/** Calls at even distances, with the workspaces in turn. */
const arrivals = (count: number, everyMs: number, of: Partial<Arrival> = {}, workspaces = names) =>
  Array.from({ length: count }, (_, n): Arrival => ({
    at: Math.round(n * everyMs),
    workspace: workspaces[n % workspaces.length] ?? '',
    serviceMs: 150 + ((n * 37) % 200),
    ...of,
  }));

const generic = (api: string, workspaces: Scene['workspaces'] = three): Scene => ({
  api,
  workspaces,
  quota: {},
});
const closed = (api: string): Scene => ({
  ...generic(api),
  quota: { closed: { from: 20_000, until: 35_000 } },
});
const model = (more: string, requests: number, tokens: number, workspaces?: Scene['workspaces']): Scene => ({
  ...generic(`kind: language-model, ${shared}, ${more}`, workspaces),
  quota: { requests: minute(requests), tokens: minute(tokens) },
});
const asking = (more: string, countsOfAsked = 1, workspaces?: Scene['workspaces']): Scene => ({
  ...model(more, 1_000, 2_000, workspaces),
  quota: { tokens: minute(2_000), countsOfAsked },
});
const keyOf = (value: string): string => `credentials: { api: "Bearer ${value}" }`;
const ownKeys: Scene = {
  ...model('limits: {}', 60, 1_000_000, { acme: keyOf('a'), bell: keyOf('b'), cobalt: keyOf('c') }),
  quota: { requests: minute(60), organization: 'org' },
};
const shop = (limits: string): Scene => ({
  ...generic(
    `kind: commerce, credential: { header: x-shopify-access-token, value: x }, limits: { requestsPerMinute: none, ${limits} }`,
  ),
  quota: { requests: { limit: 40, windowMs: 20_000 } },
});
const lowered = (requestsPerMinute: number): Scene =>
  generic(`limits: { requestsPerMinute: ${requestsPerMinute} }`, one);
const draining = (requests: number): Scene =>
  generic(
    `${shared}, limits: { requestsPerMinute: none, maxReserved: 100 }, speaks: { windows: [{ requests: ${requests}, seconds: 60, kind: leaky }] }`,
    one,
  );
/** Every so many calls of a workspace have fields of their own. */
const mixed = (count: number, everyMs: number, of: (n: number) => Partial<Arrival>) =>
  arrivals(count, everyMs, {}, ['acme']).map((each, n) => ({ ...each, ...of(n) }));
const asked50 = { tokens: { asked: 50, taken: 40 } };
const asked100 = { tokens: { asked: 100, taken: 15 } };

const changes: readonly Change[] = [
  {
    name: 'an own ceiling is given to a workspace, and calls are refused for it',
    before: generic('limits: { requestsPerMinute: 600 }'),
    after: generic('limits: { requestsPerMinute: 600, maxWaitSeconds: 20 }', {
      ...three,
      acme: 'requestsPerMinute: { api: 20 }',
    }),
    arrivals: arrivals(300, 300),
  },
  {
    name: 'a language model allows fewer tokens',
    before: model('limits: { tokensPerMinute: 60000 }', 1_000, 60_000),
    after: model('limits: { tokensPerMinute: 15000 }', 1_000, 15_000),
    arrivals: arrivals(200, 500, { tokens: { asked: 400, taken: 350 } }),
  },
  {
    name: 'a language model that counts what calls ask for, and not what they take, states how many tokens it allows',
    before: asking('limits: {}'),
    after: asking('limits: { maxWaitSeconds: 20 }'),
    arrivals: arrivals(120, 500, asked100),
  },
  {
    name: 'a language model counts fewer tokens than the gateway, by its own count',
    before: asking('limits: {}', 0.9),
    after: asking('limits: {}', 0.9, weighed),
    arrivals: arrivals(70, 1_800, asked100),
  },
  {
    name: 'workspaces that share a credential get other weights',
    before: model('limits: { requestsPerMinute: 60 }', 60, 1_000_000),
    after: model('limits: { requestsPerMinute: 60 }', 60, 1_000_000, { ...three, acme: 'weight: 4' }),
    arrivals: arrivals(150, 400, asked50),
  },
  {
    name: 'workspaces have keys of their own that turn out to share one quota, and get twice the calls',
    before: ownKeys,
    arrivals: arrivals(150, 600, asked50),
    times: 2,
  },
  {
    name: 'a shop takes two calls of a workspace at once',
    before: shop('maxInFlight: 1'),
    after: shop('maxInFlight: 2'),
    arrivals: arrivals(150, 150, { serviceMs: 900 }),
  },
  {
    name: 'calls in flight of all are capped',
    before: generic(`${shared}, limits: { maxInFlightTotal: 100 }`),
    after: generic(`${shared}, limits: { maxInFlightTotal: 3 }`),
    arrivals: arrivals(300, 100, { serviceMs: 400 }),
  },
  {
    name: 'windows are described',
    before: generic(`${shared}, speaks: { windows: [{ requests: 50, seconds: 1 }] }`),
    after: generic(
      `${shared}, speaks: { windows: [{ requests: 3, seconds: 1 }, { requests: 100, seconds: 60, kind: fixed }] }`,
    ),
    arrivals: arrivals(160, 150),
  },
  {
    name: 'an upstream is closed for a while, and calls may wait less long',
    before: closed('limits: { requestsPerMinute: 600 }'),
    after: closed('limits: { requestsPerMinute: 600, maxWaitSeconds: 8 }'),
    arrivals: arrivals(200, 300),
  },
  {
    name: 'background calls meet a lower ceiling',
    before: lowered(600),
    after: lowered(40),
    arrivals: mixed(150, 400, (n) => ({ fields: n % 3 === 0 ? { priority: 'u=7' } : {} })),
  },
  {
    name: 'calls that wait without a connection meet a lower limit, under which they keep their positions',
    before: lowered(600),
    after: lowered(60),
    arrivals: mixed(200, 200, (n) => ({
      fields: { prefer: n % 2 === 0 ? 'reserve, wait=2' : 'wait=30' },
      comesBack: true,
    })),
  },
  {
    name: 'of calls that keep their positions every third one was never seen again, and its quota is raised',
    before: draining(30),
    after: draining(40),
    arrivals: mixed(150, 300, (n) => ({ fields: { prefer: 'reserve, wait=1' }, comesBack: n % 3 !== 0 })),
  },
];

describe('figures are within 5 % or 100 ms of those of the gateway, where', () => {
  test.each(changes)('$name', async ({ before, after = before, arrivals, times = 1 }) => {
    const recording = await playAtGateway(before, arrivals);
    const many = arrivals.flatMap((each) => Array<Arrival>(times).fill(each));
    const is = lived(await playAtGateway(after, many));
    const said = await rehearsed(recording, after, times);
    const far = (['upstreams', 'workspaces'] as const).flatMap((kind) =>
      Object.entries(is[kind]).flatMap(([name, real]) =>
        farApart(real, said[kind][name]).map((apart) => `${name} ${apart}`),
      ),
    );
    expect(far).toEqual([]);
    // Otherwise nothing was compared.
    expect(
      Object.values(is.upstreams).some(({ refused, waitMs }) => refused > 0 || (waitMs.p95 ?? 0) > 4_000),
    ).toBe(true);
  });
});
