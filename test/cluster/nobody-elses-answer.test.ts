/**
 * Random pairs of equal and unequal requests over two replicas and one Redis: with keys and without, as JSON, streams and errors, with clients
 * that hang up and API keys that are revoked. The judge stands outside the gateway: the upstream stamps each answer with a serial
 * number and tells the request as it got it, and the clients know what they sent.
 */
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Service } from '../../src/service.ts';
import { serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

const pairs = Number(process.env['PAIRS'] ?? (process.env['SLUICE_TESTS'] === 'long' ? 1_000 : 200));
const seed = Number(process.env['SEED'] ?? 1);
/** Pairs under way at once. */
const width = 40;
/** After so many pairs the API keys that were made to be revoked are revoked, and others take their place. */
const pairsPerReload = 50;

/** mulberry32: the same pairs for the same seed. */
function randomOf(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d_2b_79_f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const workspaces = ['alpha', 'beta'] as const;
type WorkspaceName = (typeof workspaces)[number];
const answers = ['json', 'slow', 'stream', 'large', 'error-inside', '409', '500'] as const;
/** Those after which the same key asks the upstream again. */
const unkept = new Set<string>(['error-inside', '409', '500']);

/** What a client asks for. */
interface Wanted {
  readonly workspace: WorkspaceName;
  /** `own`: with a credential of the client; `shared`: of both workspaces; `each`: of the workspace. */
  readonly upstream: 'own' | 'shared' | 'each';
  readonly path: string;
  readonly body: string;
  /** By lower-case name; all of them go upstream. */
  readonly fields: Readonly<Record<string, string>>;
  readonly key: string | null;
}

const variedFields = [
  'range',
  'accept',
  'stripe-account',
  'openai-organization',
  'cookie',
  'private-token',
] as const;
const credentialOf = { shared: 'Bearer operator', alpha: 'Bearer of-alpha', beta: 'Bearer of-beta' };

/** How the second request of a pair differs from the first; `equal`: not at all. */
const relations = [
  'equal',
  'equal',
  'equal',
  'equal',
  'body',
  'path',
  'workspace',
  'credential',
  'field',
] as const;

interface Sent {
  readonly wanted: Wanted;
  readonly pair: number;
  readonly replica: number;
  readonly retryCount: number | null;
  readonly leavesAfterMs: number | null;
  readonly apiKey: string;
  /** The API key was revoked, on both replicas, before the request was sent. */
  readonly isRevoked: boolean;
}

type Got =
  | { readonly kind: 'left' }
  | { readonly kind: 'broken' }
  | {
      readonly kind: 'answer';
      readonly status: number;
      readonly code: string | null;
      readonly isReplayed: boolean;
      readonly text: string;
    };

/** A request as the upstream got it. */
interface Told {
  readonly serial: number;
  readonly authorization: string | null;
  readonly path: string;
  readonly body: string;
  readonly fields: Readonly<Record<string, string>>;
}

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** An upstream that tells in each answer which request it was made for. */
async function startUpstream() {
  const calls: Told[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.on('end', () => {
      const { headers, url: path = '' } = request;
      const fields = Object.fromEntries(
        variedFields.flatMap((name) => (headers[name] === undefined ? [] : [[name, String(headers[name])]])),
      );
      const told = { serial: calls.length, authorization: headers.authorization ?? null, path, body, fields };
      calls.push(told);
      void answer(response, told, new URL(path, 'http://a').searchParams.get('answer') ?? '');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, resolve));
  const { port } = server.address() as AddressInfo;
  const stop = (): Promise<unknown> =>
    new Promise((resolve) => {
      server.close(resolve);
      server.closeAllConnections();
    });
  return { calls, origin: `http://127.0.0.1:${port}`, port, stop };
}

const json = { 'content-type': 'application/json' };

async function answer(response: ServerResponse, told: Told, kind: string): Promise<void> {
  const text = JSON.stringify(told);
  if (kind === 'stream') {
    await pause(10);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${text}\n\n`);
    for (let at = 0; at < 6; at += 1) {
      await pause(20);
      response.write(`data: ${at}\n\n`);
    }
    response.end('data: [DONE]\n\n');
    return;
  }
  await pause(kind === 'slow' ? 120 : 5);
  if (kind === 'large') return void response.end(`${text}\n${'x'.repeat(200_000)}`);
  if (kind === 'error-inside') return void response.writeHead(200, json).end(JSON.stringify({ error: told }));
  if (kind === '409' || kind === '500') return void response.writeHead(Number(kind), json).end(text);
  response.writeHead(200, json).end(text);
}

/** What an answer tells of its request; `null` = it is not whole. */
function toldIn(text: string, kind: string): Told | null {
  if (kind === 'stream') {
    const whole = /^data: (.*)\n\n(?:data: \d\n\n){6}data: \[DONE\]\n\n$/.exec(text);
    return whole?.[1] === undefined ? null : (JSON.parse(whole[1]) as Told);
  }
  if (kind === 'large') {
    const [first = '', rest = ''] = text.split('\n');
    return rest.length === 200_000 ? (JSON.parse(first) as Told) : null;
  }
  const parsed = JSON.parse(text) as Told | { readonly error: Told };
  return 'error' in parsed ? parsed.error : parsed;
}

const answerOf = ({ path }: Wanted): string => new URL(path, 'http://a').searchParams.get('answer') ?? '';

/** The credential with which a request is to reach the upstream. */
function authorizationOf({ upstream, workspace }: Wanted): string | null {
  if (upstream === 'own') return null;
  return upstream === 'shared' ? credentialOf.shared : credentialOf[workspace];
}

const isOfRequest = (told: Told, wanted: Wanted): boolean =>
  told.path === wanted.path &&
  told.body === wanted.body &&
  told.authorization === authorizationOf(wanted) &&
  variedFields.every((name) => {
    // An injected credential takes the place of whatever else of the client is one.
    if (name === 'private-token' && wanted.upstream !== 'own') return told.fields[name] === undefined;
    return told.fields[name] === wanted.fields[name];
  });

/** Equal for requests of which one may have the answer of the other. */
function identityOf({ workspace, upstream, path, body, fields, key }: Wanted): string {
  const upstreamFields = Object.entries(fields).filter(
    ([name]) => upstream === 'own' || name !== 'private-token',
  );
  return JSON.stringify([
    workspace,
    upstream,
    path,
    body,
    upstreamFields.sort(([a], [b]) => (a < b ? -1 : 1)),
    key,
  ]);
}

test(`of ${pairs} random pairs over two replicas nobody gets an answer that was not made for an equal request of its own workspace and credential`, async () => {
  const random = randomOf(seed);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const upstream = await startUpstream();
  const lasting = { alpha: createKey(), beta: createKey() };
  let passing = { alpha: createKey(), beta: createKey() };
  const yaml = (more: typeof lasting): string =>
    [
      'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
      `redis: { url: "${redis.url}", commandTimeoutMs: 5000 }`,
      'privacy: { labelKey: "a label key for tests only" }',
      'upstreams:',
      ...(['own', 'shared', 'each'] as const).flatMap((name, at) => [
        `  ${name}:`,
        `    origins: ["http://127.0.0.${at + 1}:${upstream.port}"]`,
        '    allowPrivateAddresses: true',
        '    limits: { requestsPerMinute: 1000000, requestsPerDay: none }',
        ...(name === 'own'
          ? []
          : [`    credential: { header: authorization, value: "${credentialOf.shared}" }`]),
      ]),
      'workspaces:',
      ...workspaces.flatMap((name) => [
        `  ${name}:`,
        `    keys: ["${lasting[name].hash}", "${more[name].hash}"]`,
        `    credentials: { each: "${credentialOf[name]}" }`,
      ]),
    ].join('\n');
  const services: Service[] = [await serviceOf(yaml(passing)), await serviceOf(yaml(passing))];
  let isStarved = false;
  const sentAll: (Sent & { readonly got: Got })[] = [];

  const send = async (sent: Sent): Promise<void> => {
    const { wanted, replica, retryCount, apiKey, leavesAfterMs } = sent;
    const port = services[replica]?.dataAddress.port ?? 0;
    const headers = {
      host: `127.0.0.1:${port}`,
      'sluice-key': apiKey,
      'content-length': wanted.body.length,
      ...wanted.fields,
      ...(wanted.key === null ? {} : { 'idempotency-key': wanted.key }),
      ...(retryCount === null ? {} : { 'x-stainless-retry-count': retryCount }),
    };
    const got = await new Promise<Got>((resolve) => {
      let text = '';
      const path = `/via/${wanted.upstream}${wanted.path}`;
      const request = httpRequest({ port, host: '127.0.0.1', method: 'POST', path, headers, agent: false });
      const leaving =
        leavesAfterMs === null
          ? null
          : setTimeout(() => {
              resolve({ kind: 'left' });
              request.destroy();
            }, leavesAfterMs);
      const end = (result: Got): void => {
        if (leaving !== null) clearTimeout(leaving);
        resolve(result);
      };
      request.on('error', () => end({ kind: 'broken' }));
      request.on('response', (response: IncomingMessage) => {
        response.on('data', (chunk: Buffer) => (text += chunk.toString()));
        response.on('error', () => end({ kind: 'broken' }));
        response.on('end', () =>
          end({
            kind: 'answer',
            status: response.statusCode ?? 0,
            code: response.headers['sluice-error']?.toString() ?? null,
            isReplayed: response.headers['sluice-replayed'] === 'true',
            text,
          }),
        );
      });
      request.end(wanted.body);
    });
    sentAll.push({ ...sent, got });
  };

  const revoked: { readonly workspace: WorkspaceName; readonly key: string }[] = [];
  const apiKeyFor = (workspace: WorkspaceName): Pick<Sent, 'apiKey' | 'isRevoked'> => {
    const old = revoked.findLast((each) => each.workspace === workspace);
    if (old !== undefined && random() < 0.05) return { apiKey: old.key, isRevoked: true };
    const apiKey = random() < 0.3 ? passing[workspace].key : lasting[workspace].key;
    return { apiKey, isRevoked: false };
  };
  const other = (name: WorkspaceName): WorkspaceName => (name === 'alpha' ? 'beta' : 'alpha');

  const onePair = async (pair: number): Promise<void> => {
    const keyed = random();
    const first: Wanted = {
      workspace: pick(workspaces),
      upstream: pick(['own', 'shared', 'each']),
      path: `/orders?pair=${pair}&answer=${pick(answers)}`,
      body: `body ${pair}`,
      fields: Object.fromEntries(
        variedFields
          .filter(() => random() < 0.3)
          .map((name) => [name, `${name}-${Math.floor(random() * 2)}`]),
      ),
      // Two pairs of different workspaces may have the same key.
      key: keyed < 0.5 ? `key-${Math.floor(pair / 2)}-${Math.floor(random() * 2)}-${pair}` : null,
    };
    const relation = pick(relations);
    const changed: Record<(typeof relations)[number], Partial<Wanted>> = {
      equal: {},
      body: { body: `bodx ${pair}` },
      path: { path: `${first.path}&more=1` },
      workspace: { workspace: other(first.workspace) },
      credential: { fields: { ...first.fields, 'private-token': 'private-token-x' } },
      field: { fields: { ...first.fields, [pick(variedFields)]: 'changed' } },
    };
    const second = { ...first, ...changed[relation] };
    const isSdk = first.key === null && keyed < 0.9;
    const leaves = random() < 0.5 ? Math.floor(random() * 180) : null;
    const gapMs = leaves !== null && random() < 0.6 ? leaves + random() * 100 : random() * 200;
    const secondLeaves = random() < 0.15 ? Math.floor(random() * 200) : null;
    const common = { pair, isRevoked: false };
    const requests = [
      {
        ...common,
        wanted: first,
        replica: pick([0, 1]),
        retryCount: isSdk ? 0 : null,
        leavesAfterMs: leaves,
        ...apiKeyFor(first.workspace),
      },
      {
        ...common,
        wanted: second,
        replica: pick([0, 1]),
        retryCount: isSdk ? 1 : null,
        leavesAfterMs: secondLeaves,
        ...apiKeyFor(second.workspace),
      },
      // A third one, which nobody has left anything for but the second.
      {
        ...common,
        wanted: second,
        replica: pick([0, 1]),
        retryCount: isSdk ? pick([0, 1, 2]) : null,
        leavesAfterMs: null,
        ...apiKeyFor(second.workspace),
      },
    ];
    await Promise.all(
      requests.map(async (one, at) => {
        await pause(at * gapMs);
        await send(one);
      }),
    );
  };

  try {
    for (let from = 0; from < pairs; from += pairsPerReload) {
      let next = from;
      const lane = async (): Promise<void> => {
        for (
          let pair = (next += 1) - 1;
          pair < Math.min(pairs, from + pairsPerReload);
          pair = (next += 1) - 1
        )
          await onePair(pair);
      };
      const under = Promise.all(Array.from({ length: width }, lane));
      // While calls of this stretch are under way, the keys that were made to be revoked are.
      await pause(150);
      const [old, fresh] = [passing, { alpha: createKey(), beta: createKey() }];
      const settings = parseSettings(yaml(fresh), { path: 'test.yaml', env: {} });
      await Promise.all(services.map((service) => service.reload(settings)));
      passing = fresh;
      for (const workspace of workspaces) revoked.push({ workspace, key: old[workspace].key });
      await under;
    }
    for (const service of services) {
      const page = await (await fetch(`http://127.0.0.1:${service.adminAddress.port}/metrics`)).text();
      // On a machine that is too busy Redis answers too late for a claim. The replicas count that, and nothing is promised then.
      isStarved ||= /^sluice_(?:redis_errors|repeats_made_again)_total\S* [1-9]/m.test(page);
    }
  } finally {
    for (const service of services) await service.close();
    await upstream.stop();
  }

  const wrong: string[] = [];
  const receivers = new Map<number, Sent[]>();
  const counts: Record<string, number> = {};
  const count = (what: string): void => void (counts[what] = (counts[what] ?? 0) + 1);
  for (const { got, ...sent } of sentAll) {
    const { wanted, pair } = sent;
    const say = (words: string): void => void wrong.push(`pair ${pair}, ${JSON.stringify(wanted)}: ${words}`);
    if (got.kind === 'left') continue;
    if (got.kind === 'broken' || got.code === 'upstream_unreachable') {
      count('without an answer');
      continue;
    }
    if (sent.isRevoked && got.status !== 401) say(`got ${got.status} with a key that was revoked`);
    if (got.code !== null) {
      count(got.code);
      if (got.code === 'unauthenticated') continue;
      const isExpected = got.code === 'idempotency_mismatch' && wanted.key !== null;
      if (!isExpected) say(`was refused with ${got.code}`);
      continue;
    }
    const told = toldIn(got.text, answerOf(wanted));
    if (told === null) {
      say('got an answer that is not whole');
      continue;
    }
    if (!isOfRequest(told, wanted)) say(`got the answer of ${JSON.stringify(told)}`);
    count(got.isReplayed ? 'replayed' : 'answered');
    if (got.isReplayed && wanted.key !== null && unkept.has(answerOf(wanted)))
      say('got an error that was kept');
    receivers.set(told.serial, [...(receivers.get(told.serial) ?? []), sent]);
  }
  for (const [serial, each] of receivers) {
    const [one] = each;
    if (one === undefined || each.length === 1) continue;
    count('shared');
    if (new Set(each.map(({ wanted }) => identityOf(wanted))).size > 1)
      wrong.push(`answer ${serial} went to different requests: ${JSON.stringify(each)}`);
    if (one.wanted.key === null)
      wrong.push(`answer ${serial} went to ${each.length} clients without a key: ${JSON.stringify(each)}`);
  }
  // One upstream call for each key whose answer shows that it ran.
  const byPath = Map.groupBy(upstream.calls, ({ path }) => path);
  for (const sent of sentAll) {
    const { wanted } = sent;
    if (wanted.key === null || unkept.has(answerOf(wanted))) continue;
    const calls = (byPath.get(wanted.path) ?? []).filter((told) => isOfRequest(told, wanted)).length;
    // Two workspaces on one credential look alike to this upstream.
    const may = sentAll.some((one) => one.pair === sent.pair && one.wanted.workspace !== wanted.workspace)
      ? 2
      : 1;
    if (calls > may && !isStarved) wrong.push(`${JSON.stringify(wanted)} was made ${calls} times`);
  }
  expect({ seed, wrong: wrong.slice(0, 5) }).toEqual({ seed, wrong: [] });
  // Connections break on a machine that is too busy; whoever got no answer got nobody else's.
  expect(counts['without an answer'] ?? 0).toBeLessThan(sentAll.length / 20);
  // What the pairs were made for has happened.
  for (const what of ['replayed', 'answered', 'shared', 'idempotency_mismatch', 'unauthenticated'])
    expect([what, counts[what] ?? 0]).not.toEqual([what, 0]);
});
