/** Random pairs of equal and unequal requests over two replicas. The judge is outside: the upstream numbers its answers and tells the request as it got it. */
import type { ServerResponse } from 'node:http';
import { expect, test } from '@jest/globals';
import { Chance } from '../simulation/chance.ts';
import { pause } from '../support/redis-fleet.ts';
import { onRedis, type Fleet } from './fleet.ts';

const pairs = Number(process.env['PAIRS'] ?? (process.env['SLUICE_TESTS'] === 'long' ? 1_000 : 100));
const seed = Number(process.env['SEED'] ?? 1);
const width = 40;

const workspaces = ['alpha', 'beta'] as const;
/** After the last three the same key asks the upstream again. */
const answers = ['json', 'slow', 'stream', 'large', 'error-inside', '409', '500'] as const;
const unkept: readonly string[] = answers.slice(4);
/** All of them go upstream. No client leaves the first one out. */
const varied = ['accept', 'range', 'stripe-account', 'openai-project', 'cookie', 'private-token'] as const;
const credentialOf = { shared: 'Bearer operator', alpha: 'Bearer of-alpha', beta: 'Bearer of-beta' };
/** How the second request of a pair differs from the first, if it does. */
const relations = ['body', 'path', 'workspace', 'credential', 'field'] as const;

interface Wanted {
  readonly workspace: (typeof workspaces)[number];
  /** `own`: with a credential of the client; `shared`: of both workspaces; `each`: of the workspace. */
  readonly upstream: 'own' | 'shared' | 'each';
  readonly path: string;
  readonly body: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly key: string | null;
}
type Sent = ReturnType<typeof requestsOf>['requests'][number];

type Got = Awaited<ReturnType<typeof send>>;

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
  const isSame = told.path === path && told.body === body && told.authorization === credential;
  return isSame && varied.every((name) => told.fields[name] === fields[name]);
}

/** Equal for requests of which one may have the answer of the other. */
const identityOf = (wanted: Wanted): string => JSON.stringify({ ...wanted, fields: passed(wanted) });

/** Three requests of a pair: the first, the second, and one more like the second, which nobody has left anything for but it. */
function requestsOf(pair: number, chance: Chance) {
  const keyed = chance.next();
  const someFields = varied.filter((name) => name === 'accept' || chance.happens(0.3));
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
    body: { body: `bodx ${pair}` },
    path: { path: `${first.path}&more=1` },
    workspace: { workspace: first.workspace === 'alpha' ? 'beta' : 'alpha' },
    credential: { fields: { ...first.fields, 'private-token': 'private-token-x' } },
    field: { fields: { ...first.fields, [chance.pick(varied)]: 'changed' } },
  };
  const second = { ...first, ...(chance.happens(0.45) ? {} : changed[chance.pick(relations)]) };
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

async function send(all: Fleet, { wanted, replica, retryCount, leavesAfterMs }: Sent) {
  const { upstream, path, workspace, body, fields, key } = wanted;
  const headers = {
    ...fields,
    ...(key !== null && { 'idempotency-key': key }),
    ...(retryCount !== null && { 'x-stainless-retry-count': String(retryCount) }),
  };
  const leaving = new AbortController();
  const { signal } = leaving;
  const timer = leavesAfterMs === null ? undefined : setTimeout(() => leaving.abort(), leavesAfterMs);
  try {
    return await all.call(replica, `${upstream}${path}`, { workspace, headers, body, signal });
  } catch {
    return signal.aborted ? 'left' : 'broken';
  } finally {
    clearTimeout(timer);
  }
}

/** What is wrong with what the clients got, and how often each kind of outcome happened. */
function judge(all: readonly (Sent & { readonly got: Got })[]) {
  const wrong: string[] = [];
  const counts: Record<string, number> = {};
  const count = (what: string): void => void (counts[what] = (counts[what] ?? 0) + 1);
  const receivers = new Map<number, Wanted[]>();
  for (const { got, wanted, pair } of all) {
    const say = (words: string): void => void wrong.push(`pair ${pair}, ${JSON.stringify(wanted)}: ${words}`);
    if (got === 'left') continue;
    if (got === 'broken' || got.code === 'upstream_unreachable') {
      count('without an answer');
      continue;
    }
    const { code, text } = got;
    const isReplayed = got.headers.get('sluice-replayed') === 'true';
    if (code !== null) {
      count(code);
      if (code !== 'idempotency_mismatch' || wanted.key === null) say(`was refused with ${code}`);
      continue;
    }
    const told = toldIn(text, answerOf(wanted));
    if (told === null) {
      say('got an answer that is not whole');
      continue;
    }
    if (!isOfRequest(told, wanted)) say(`got the answer of ${JSON.stringify(told)}`);
    count(isReplayed ? 'replayed' : 'answered');
    if (isReplayed && wanted.key !== null && unkept.includes(answerOf(wanted)))
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
  return { wrong, counts };
}

const { fleet, upstream } = onRedis();

test(`of ${pairs} random pairs over two replicas nobody gets an answer that was not made for an equal request of its own workspace and credential`, async () => {
  const chance = new Chance(seed);
  let serial = 0;
  const { port } = await upstream((response, { headers, url: path = '' }, body) => {
    const named = varied.filter((name) => headers[name] !== undefined);
    const fields = Object.fromEntries(named.map((name) => [name, String(headers[name])]));
    const { authorization = null } = headers;
    void answer(response, { serial: serial++, authorization, path, body, fields });
  });
  const limits = { requestsPerMinute: 1_000_000, requestsPerDay: 'none' };
  const named = (at: number, credential?: object) => ({
    origins: [`http://127.0.0.${at}:${port}`],
    limits,
    credential,
  });
  const operator = { header: 'authorization', value: credentialOf.shared };
  const ownOf = (name: keyof typeof credentialOf) => ({ credentials: { each: credentialOf[name] } });
  const all = await fleet({
    upstreams: { own: named(1), shared: named(2, operator), each: named(3, operator) },
    workspaces: Object.fromEntries(workspaces.map((name) => [name, ownOf(name)])),
    redis: { commandTimeoutMs: 5_000 },
  });
  const sentAll: (Sent & { readonly got: Got })[] = [];
  const onePair = async (pair: number): Promise<void> => {
    const { gapMs, requests } = requestsOf(pair, chance);
    await Promise.all(
      requests.map(async (one, at) => {
        await pause(at * gapMs);
        sentAll.push({ ...one, got: await send(all, one) });
      }),
    );
  };
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < pairs) await onePair(next++);
  };
  await Promise.all(Array.from({ length: width }, lane));
  const { wrong, counts } = judge(sentAll);
  expect({ seed, wrong: wrong.slice(0, 5) }).toEqual({ seed, wrong: [] });
  // Connections break on a machine that is too busy; whoever got no answer got nobody else's.
  expect(counts['without an answer'] ?? 0).toBeLessThan(sentAll.length / 20);
  // What the pairs were made for has happened.
  for (const what of ['replayed', 'answered', 'shared', 'idempotency_mismatch'])
    expect([what, counts[what] ?? 0]).not.toEqual([what, 0]);
});
