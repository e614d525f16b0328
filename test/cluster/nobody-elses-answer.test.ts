/**
 * Random pairs of equal and unequal requests over two replicas: with keys and without, as JSON, streams and errors, with clients that
 * hang up and API keys that are revoked. The judge stands outside the gateway: the upstream stamps each answer with a serial number
 * and tells the request as it got it, and the clients know what they sent.
 */
import { request as httpRequest, type ServerResponse } from 'node:http';
import { expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { Chance } from '../simulation/chance.ts';
import { pause } from '../support/redis-fleet.ts';
import { onRedis } from './fleet.ts';

const pairs = Number(process.env['PAIRS'] ?? (process.env['SLUICE_TESTS'] === 'long' ? 1_000 : 200));
const seed = Number(process.env['SEED'] ?? 1);
/** Pairs under way at once. */
const width = 40;
/** After so many pairs the API keys that were made to be revoked are revoked, and others take their place. */
const pairsPerReload = 100;

const workspaces = ['alpha', 'beta'] as const;
type WorkspaceName = (typeof workspaces)[number];
/** After the last three the same key asks the upstream again. */
const answers = ['json', 'slow', 'stream', 'large', 'error-inside', '409', '500'] as const;
const unkept: readonly string[] = answers.slice(4);
/** All of them go upstream. */
const variedFields = [
  'range',
  'accept',
  'stripe-account',
  'openai-organization',
  'cookie',
  'private-token',
] as const;
const credentialOf = { shared: 'Bearer operator', alpha: 'Bearer of-alpha', beta: 'Bearer of-beta' };
/** How the second request of a pair differs from the first. */
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

interface Wanted {
  readonly workspace: WorkspaceName;
  /** `own`: with a credential of the client; `shared`: of both workspaces; `each`: of the workspace. */
  readonly upstream: 'own' | 'shared' | 'each';
  readonly path: string;
  readonly body: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly key: string | null;
}

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
  | { readonly kind: 'left' | 'broken' }
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

const answerOf = ({ path }: Pick<Told, 'path'>): string =>
  new URL(path, 'http://a').searchParams.get('answer') ?? '';

async function answer(response: ServerResponse, told: Told): Promise<void> {
  const text = JSON.stringify(told);
  const kind = answerOf(told);
  await pause({ slow: 120, stream: 10 }[kind] ?? 5);
  if (kind === 'stream') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const part of [text, 0, 1, 2, 3, 4, 5]) {
      response.write(`data: ${part}\n\n`);
      await pause(20);
    }
    return void response.end('data: [DONE]\n\n');
  }
  if (kind === 'large') return void response.end(`${text}\n${'x'.repeat(200_000)}`);
  response.writeHead(Number(kind) || 200, { 'content-type': 'application/json' });
  response.end(kind === 'error-inside' ? JSON.stringify({ error: told }) : text);
}

/** What an answer tells of its request; `null` = it is not whole. */
function toldIn(text: string, kind: string): Told | null {
  const form = {
    stream: /^data: (.*)\n\n(?:data: \d\n\n){6}data: \[DONE\]\n\n$/,
    large: /^(.*)\nx{200000}$/,
  }[kind];
  const whole = form === undefined ? text : form.exec(text)?.[1];
  if (whole === undefined) return null;
  const parsed = JSON.parse(whole) as Told | { readonly error: Told };
  return 'error' in parsed ? parsed.error : parsed;
}

/** The fields that reach the upstream: an injected credential takes the place of whatever else of the client is one. */
const passed = ({ fields, upstream }: Wanted): Readonly<Record<string, string>> =>
  Object.fromEntries(
    Object.entries(fields)
      .filter(([name]) => upstream === 'own' || name !== 'private-token')
      .toSorted(([a], [b]) => (a < b ? -1 : 1)),
  );

function isOfRequest(told: Told, wanted: Wanted): boolean {
  const { workspace, upstream, path, body } = wanted;
  const credential = upstream === 'own' ? null : credentialOf[upstream === 'shared' ? 'shared' : workspace];
  const fields = passed(wanted);
  return (
    told.path === path &&
    told.body === body &&
    told.authorization === credential &&
    variedFields.every((name) => told.fields[name] === fields[name])
  );
}

/** Equal for requests of which one may have the answer of the other. */
const identityOf = (wanted: Wanted): string => JSON.stringify({ ...wanted, fields: passed(wanted) });

/** Three requests of a pair: the first, the second, and one more like the second, which nobody has left anything for but it. */
function requestsOf(pair: number, chance: Chance) {
  const keyed = chance.next();
  const someFields = variedFields.filter(() => chance.happens(0.3));
  const first: Wanted = {
    workspace: chance.pick(workspaces),
    upstream: chance.pick(['own', 'shared', 'each']),
    path: `/orders?pair=${pair}&answer=${chance.pick(answers)}`,
    body: `body ${pair}`,
    fields: Object.fromEntries(someFields.map((name) => [name, `${name}-${chance.whole(0, 1)}`])),
    // Two pairs of different workspaces may have the same key.
    key: keyed < 0.5 ? `key-${Math.floor(pair / 2)}-${chance.whole(0, 1)}-${pair}` : null,
  };
  const changed: Record<(typeof relations)[number], Partial<Wanted>> = {
    equal: {},
    body: { body: `bodx ${pair}` },
    path: { path: `${first.path}&more=1` },
    workspace: { workspace: first.workspace === 'alpha' ? 'beta' : 'alpha' },
    credential: { fields: { ...first.fields, 'private-token': 'private-token-x' } },
    field: { fields: { ...first.fields, [chance.pick(variedFields)]: 'changed' } },
  };
  const second = { ...first, ...changed[chance.pick(relations)] };
  const isSdk = first.key === null && keyed < 0.9;
  const leaves = chance.happens(0.5) ? chance.whole(0, 179) : null;
  const gapMs =
    leaves !== null && chance.happens(0.6) ? leaves + chance.between(0, 100) : chance.between(0, 200);
  const requests = [
    { wanted: first, retryCount: 0, leavesAfterMs: leaves },
    { wanted: second, retryCount: 1, leavesAfterMs: chance.happens(0.15) ? chance.whole(0, 199) : null },
    { wanted: second, retryCount: chance.whole(0, 2), leavesAfterMs: null },
  ].map((one) => ({
    ...one,
    pair,
    replica: chance.whole(0, 1),
    retryCount: isSdk ? one.retryCount : null,
  }));
  return { gapMs, requests };
}

/** Resolves when the client has an answer, or has left. */
function send(port: number, { wanted, retryCount, apiKey, leavesAfterMs }: Sent): Promise<Got> {
  const headers = {
    host: `127.0.0.1:${port}`,
    'sluice-key': apiKey,
    'content-length': wanted.body.length,
    ...wanted.fields,
    ...(wanted.key === null ? {} : { 'idempotency-key': wanted.key }),
    ...(retryCount === null ? {} : { 'x-stainless-retry-count': retryCount }),
  };
  const path = `/via/${wanted.upstream}${wanted.path}`;
  return new Promise((resolve) => {
    const request = httpRequest({ port, host: '127.0.0.1', method: 'POST', path, headers, agent: false });
    const leave = (): void => {
      resolve({ kind: 'left' });
      request.destroy();
    };
    const leaving = leavesAfterMs === null ? undefined : setTimeout(leave, leavesAfterMs);
    const end = (got: Got): void => {
      clearTimeout(leaving);
      resolve(got);
    };
    request.on('error', () => end({ kind: 'broken' }));
    request.on('response', (response) => {
      const { statusCode: status = 0, headers: fields } = response;
      const code = fields['sluice-error']?.toString() ?? null;
      const isReplayed = fields['sluice-replayed'] === 'true';
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('error', () => end({ kind: 'broken' }));
      response.on('end', () => end({ kind: 'answer', status, code, isReplayed, text }));
    });
    request.end(wanted.body);
  });
}

/** What is wrong with what the clients got, and how often each kind of outcome happened. */
function judge(all: readonly (Sent & { readonly got: Got })[], calls: readonly Told[], isStarved: boolean) {
  const wrong: string[] = [];
  const counts: Record<string, number> = {};
  const count = (what: string): void => void (counts[what] = (counts[what] ?? 0) + 1);
  const receivers = new Map<number, Wanted[]>();
  for (const { got, wanted, pair, isRevoked } of all) {
    const say = (words: string): void => void wrong.push(`pair ${pair}, ${JSON.stringify(wanted)}: ${words}`);
    if (got.kind === 'left') continue;
    if (got.kind !== 'answer' || got.code === 'upstream_unreachable') {
      count('without an answer');
      continue;
    }
    if (isRevoked && got.status !== 401) say(`got ${got.status} with a key that was revoked`);
    if (got.code !== null) {
      count(got.code);
      const isExpected =
        got.code === 'unauthenticated' || (got.code === 'idempotency_mismatch' && wanted.key !== null);
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
    if (got.isReplayed && wanted.key !== null && unkept.includes(answerOf(wanted)))
      say('got an error that was kept');
    receivers.set(told.serial, [...(receivers.get(told.serial) ?? []), wanted]);
  }
  for (const [serial, each] of receivers) {
    if (each.length === 1) continue;
    count('shared');
    if (new Set(each.map(identityOf)).size > 1)
      wrong.push(`answer ${serial} went to different requests: ${JSON.stringify(each)}`);
    if (each[0]?.key === null)
      wrong.push(`answer ${serial} went to clients without a key: ${JSON.stringify(each)}`);
  }
  // One upstream call for each key whose answer shows that it ran.
  for (const { wanted, pair } of all) {
    if (wanted.key === null || unkept.includes(answerOf(wanted)) || isStarved) continue;
    const made = calls.filter((told) => told.path === wanted.path && isOfRequest(told, wanted)).length;
    // Two workspaces on one credential look alike to this upstream.
    const isOfTwo = all.some((one) => one.pair === pair && one.wanted.workspace !== wanted.workspace);
    if (made > (isOfTwo ? 2 : 1)) wrong.push(`${JSON.stringify(wanted)} was made ${made} times`);
  }
  return { wrong, counts };
}

const { fleet, upstream } = onRedis();

test(`of ${pairs} random pairs over two replicas nobody gets an answer that was not made for an equal request of its own workspace and credential`, async () => {
  const chance = new Chance(seed);
  const calls: Told[] = [];
  const { port } = await upstream((response, { headers, url: path = '' }, body) => {
    const named = variedFields.filter((name) => headers[name] !== undefined);
    const fields = Object.fromEntries(named.map((name) => [name, String(headers[name])]));
    const told = { serial: calls.length, authorization: headers.authorization ?? null, path, body, fields };
    calls.push(told);
    void answer(response, told);
  });
  const made = () => ({ alpha: createKey(), beta: createKey() });
  const lasting = made();
  let passing = made();
  const keyed = (more: typeof lasting) =>
    Object.fromEntries(
      workspaces.map((name) => [
        name,
        { keys: [lasting[name].hash, more[name].hash], credentials: { each: credentialOf[name] } },
      ]),
    );
  const named = (at: number, credential: object) => ({
    origins: [`http://127.0.0.${at}:${port}`],
    limits: { requestsPerMinute: 1_000_000, requestsPerDay: 'none' },
    ...credential,
  });
  const operator = { credential: { header: 'authorization', value: credentialOf.shared } };
  const all = await fleet({
    upstreams: {
      own: named(1, { credential: undefined }),
      shared: named(2, operator),
      each: named(3, operator),
    },
    workspaces: keyed(passing),
    redis: { commandTimeoutMs: 5_000 },
  });
  const revoked: { readonly workspace: WorkspaceName; readonly apiKey: string }[] = [];
  const apiKeyFor = (workspace: WorkspaceName): Pick<Sent, 'apiKey' | 'isRevoked'> => {
    const old = revoked.findLast((each) => each.workspace === workspace);
    if (old !== undefined && chance.happens(0.05)) return { apiKey: old.apiKey, isRevoked: true };
    return { apiKey: (chance.happens(0.3) ? passing : lasting)[workspace].key, isRevoked: false };
  };

  const sentAll: (Sent & { readonly got: Got })[] = [];
  const onePair = async (pair: number): Promise<void> => {
    const { gapMs, requests } = requestsOf(pair, chance);
    const sent = requests.map((one) => ({ ...one, ...apiKeyFor(one.wanted.workspace) }));
    await Promise.all(
      sent.map(async (one, at) => {
        await pause(at * gapMs);
        sentAll.push({ ...one, got: await send(all.of(one.replica).dataAddress.port, one) });
      }),
    );
  };
  for (let from = 0; from < pairs; from += pairsPerReload) {
    const next = Array.from({ length: Math.min(pairsPerReload, pairs - from) }, (_, at) => from + at);
    const lane = async (): Promise<void> => {
      for (let pair = next.shift(); pair !== undefined; pair = next.shift()) await onePair(pair);
    };
    const under = Promise.all(Array.from({ length: width }, lane));
    // While calls of this stretch are under way, the keys that were made to be revoked are.
    await pause(150);
    const [old, fresh] = [passing, made()];
    await all.reload({ workspaces: keyed(fresh) });
    passing = fresh;
    for (const workspace of workspaces) revoked.push({ workspace, apiKey: old[workspace].key });
    await under;
  }
  // On a machine that is too busy Redis answers too late for a claim. The replicas count that, and nothing is promised then.
  const late = ['sluice_redis_errors_total', 'sluice_repeats_made_again_total'].map((name) =>
    all.metric(name),
  );
  const isStarved = (await Promise.all(late)).some((times) => times > 0);

  const { wrong, counts } = judge(sentAll, calls, isStarved);
  expect({ seed, wrong: wrong.slice(0, 5) }).toEqual({ seed, wrong: [] });
  // Connections break on a machine that is too busy; whoever got no answer got nobody else's.
  expect(counts['without an answer'] ?? 0).toBeLessThan(sentAll.length / 20);
  // What the pairs were made for has happened.
  for (const what of ['replayed', 'answered', 'shared', 'idempotency_mismatch', 'unauthenticated'])
    expect([what, counts[what] ?? 0]).not.toEqual([what, 0]);
});
