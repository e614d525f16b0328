/** Repeats of calls over two replicas on one Redis: one upstream call, a response for each, nothing readable in Redis. */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
let probe: Redis;
beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
});
// What other tests have left there would be taken for this one's.
beforeEach(() => probe.flushall());
const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(async () => {
  probe.disconnect();
  await redis.stop();
});

const canary = {
  workspace: 'canary-workspace',
  key: 'canary-key',
  body: 'canary-body',
  response: 'canary-answer',
};
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
let fleets = 0;
/** Keys of calls without a key that clients have left, and the first of them as Redis holds it. */
const lists = () => probe.keys('sluice:{left.*');
const listed = async (): Promise<Buffer> =>
  (await probe.getBuffer((await lists())[0] ?? '')) ?? Buffer.alloc(0);
/** Keys of claims and kept responses. */
const claims = () => probe.keys('sluice:{repeat.*');
/** Every response is kept: it is written once it has ended, and is longer than a claim of a call under way. */
const areKept = async (): Promise<boolean> => {
  const sizes = await Promise.all((await claims()).map((key) => probe.strlen(key)));
  return sizes.length > 0 && sizes.every((size) => size > 180);
};
type Handler = (response: ServerResponse, count: number) => void;

/** Two replicas before one upstream. `maxInFlight: 1` lets calls wait behind each other. */
async function fleet(handler: Handler, more = '', limits = '') {
  const bodies: string[] = [];
  const http = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.on('end', () => {
      bodies.push(body);
      handler(response, bodies.length);
    });
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  open.push(
    () =>
      new Promise((resolve) => {
        http.close(resolve);
        http.closeAllConnections();
      }),
  );
  const { key, hash } = createKey();
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
    'privacy: { labelKey: "a label key for tests only" }',
    more,
    `upstreams:\n  api:\n    origins: ["http://127.0.0.1:${(http.address() as AddressInfo).port}"]`,
    `    allowPrivateAddresses: true\n    credential: Bearer x\n    limits: { ${limits.includes('maxInFlight') ? limits.slice(2) : `maxInFlight: 1${limits}`} }`,
    `workspaces:\n  ${canary.workspace}-${(fleets += 1)}:\n    keys: ["${hash}"]`,
  ].join('\n');
  const logs: string[] = [];
  const services = [await serviceOf(yaml, logs), await serviceOf(yaml, logs)];
  for (const service of services) open.push(() => service.close());
  const send = (at: 0 | 1, body: string, headers: Record<string, string>, signal?: AbortSignal) =>
    fetch(`http://127.0.0.1:${services[at]?.dataAddress.port ?? 0}/via/api/orders`, {
      method: 'POST',
      body,
      headers: { authorization: `Bearer ${key}`, ...headers },
      ...(signal === undefined ? {} : { signal }),
    });
  const leave = async (at: 0 | 1, body: string, headers: Record<string, string>, when: () => boolean) => {
    const leaving = new AbortController();
    const left = send(at, body, headers, leaving.signal).catch(() => 'left');
    await until(when);
    leaving.abort();
    expect(await left).toBe('left');
  };
  const waiting = (): number =>
    services
      .flatMap(({ gateway }) => gateway.parts.pressure.buckets())
      .reduce((sum, { snapshot }) => sum + snapshot.waiting, 0);
  return { send, leave, bodies, waiting, services, logs };
}

const keyed = { 'idempotency-key': canary.key };
const textOf = async (response: Promise<Response>): Promise<string> => (await response).text();
const codeOf = (response: Response): string | null => response.headers.get('sluice-error');

test('two calls with one key at two replicas are one upstream call, and both get its response, large or a 500', async () => {
  const { send, bodies } = await fleet((response, count) => {
    setTimeout(() => {
      response.writeHead(count === 1 ? 200 : 500);
      response.end(count === 1 ? 'x'.repeat(1_000_000) : 'broken');
    }, 300);
  });
  const both = await Promise.all([send(0, 'a', keyed), send(1, 'a', keyed)]);
  const texts = await Promise.all(both.map((response) => response.text()));
  expect(texts.map(({ length }) => length)).toEqual([1_000_000, 1_000_000]);
  const other = { 'idempotency-key': 'other' };
  const broken = await Promise.all([send(0, 'b', other), send(1, 'b', other)]);
  expect(broken.map(({ status }) => status)).toEqual([500, 500]);
  expect(bodies).toHaveLength(2);
});

test('a later repeat at another replica gets the kept response, and another request with the key is refused', async () => {
  const { send, bodies } = await fleet((response) => response.end(canary.response));
  expect(await textOf(send(0, 'a', keyed))).toBe(canary.response);
  await until(areKept);
  const again = await send(1, 'a', keyed);
  expect([await again.text(), again.headers.get('sluice-replayed')]).toEqual([canary.response, 'true']);
  const other = await send(1, 'b', keyed);
  expect([other.status, codeOf(other)]).toEqual([422, 'idempotency_mismatch']);
  expect(bodies).toHaveLength(1);
});

test('a client that left a call at one replica gets its response at another by a repeat, with a key or as an SDK repeats', async () => {
  const responses: (() => void)[] = [];
  const { send, leave, bodies } = await fleet((response, count) => {
    responses.push(() => response.end(`response ${count}`));
  });
  const sdk = (count: number) => ({ 'x-stainless-retry-count': String(count) });
  for (const [first, again, count] of [
    [keyed, keyed, 1],
    [sdk(0), sdk(1), 2],
  ] as const) {
    await leave(0, 'a', first, () => bodies.length === count);
    // A claim was there before the call was made; what has no key is offered to its repeat now.
    await until(async () => first === keyed || (await lists()).length === 1);
    const joined = textOf(send(1, 'a', again));
    await sleep(100);
    responses.splice(0).forEach((respond) => respond());
    expect(await joined).toBe(`response ${count}`);
    expect(bodies).toHaveLength(count);
  }
});

test('a repeat amid a stream gets all of it at another replica, with a key while the first client reads, or as an SDK repeats after it left', async () => {
  const responses: ServerResponse[] = [];
  const { send, bodies } = await fleet((response) => {
    responses.push(response);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: first\n\n');
  });
  const whole = 'data: first\n\ndata: last\n\n';
  const first = await send(0, 'a', keyed);
  const joined = textOf(send(1, 'a', keyed));
  await sleep(100);
  responses.splice(0).forEach((response) => response.end('data: last\n\n'));
  expect([await first.text(), await joined]).toEqual([whole, whole]);

  const leaving = new AbortController();
  const left = await send(0, 'b', { 'x-stainless-retry-count': '0' }, leaving.signal);
  await left.body?.getReader().read();
  leaving.abort();
  await until(async () => (await lists()).length === 1);
  const offered = await listed();
  const again = textOf(send(1, 'b', { 'x-stainless-retry-count': '1' }));
  await until(async () => !(await listed()).equals(offered));
  responses.splice(0).forEach((response) => response.end('data: last\n\n'));
  expect(await again).toBe(whole);
  expect(bodies).toEqual(['a', 'b']);
});

test('a call whose client left while it waited gets its position back when it is repeated at another replica', async () => {
  const responses: (() => void)[] = [];
  const { send, leave, bodies, waiting } = await fleet((response) => {
    responses.push(() => response.end('fine'));
  });
  const first = send(0, 'first', {});
  await until(() => bodies.length === 1);
  let mayLeave = false;
  const left = leave(0, 'left', keyed, () => mayLeave);
  await until(() => waiting() === 1);
  const claimed = async () => (await probe.getBuffer((await claims())[0] ?? '')) ?? Buffer.alloc(0);
  const held = await claimed();
  // Another replica knows its arrival to the time that a write to Redis takes, which may be long on a busy machine.
  await sleep(1_000);
  const second = send(1, 'second', {});
  await until(() => waiting() === 2);
  mayLeave = true;
  await left;
  await until(() => waiting() === 1);
  // Its position is there for others to read.
  await until(async () => !(await claimed()).equals(held));
  const repeat = send(1, 'left', keyed);
  await until(() => waiting() === 2);
  for (const count of [1, 2, 3]) {
    await until(() => bodies.length === count);
    responses.splice(0).forEach((respond) => respond());
  }
  await Promise.all([first, second, repeat]);
  expect(bodies).toEqual(['first', 'left', 'second']);
});

test('when Redis has lost its data, calls under way are claimed again, and a replica gives what it keeps itself', async () => {
  const responses: (() => void)[] = [];
  const { send, bodies } = await fleet((response, count) => {
    responses.push(() => response.end(`response ${count}`));
  });
  const first = textOf(send(0, 'a', keyed));
  await until(() => bodies.length === 1);
  const before = await claims();
  await probe.flushall();
  await until(async () => (await claims()).join() === before.join());
  const joined = textOf(send(1, 'a', keyed));
  responses.splice(0).forEach((respond) => respond());
  expect([await first, await joined]).toEqual(['response 1', 'response 1']);
  await probe.flushall();
  const later = await send(0, 'a', keyed);
  expect([await later.text(), later.headers.get('sluice-replayed')]).toEqual(['response 1', 'true']);
  expect(bodies).toHaveLength(1);
});

test('kept responses in Redis are bounded and expire, and neither keys nor values show what they are of', async () => {
  const bounds = 'idempotency: { maxWorkspaceBytes: 20000, maxTotalBytes: 100000 }';
  const { send } = await fleet((response) => response.end(canary.response.repeat(500)), bounds);
  for (let at = 0; at < 6; at += 1) {
    await textOf(send(0, canary.body, { 'idempotency-key': `${canary.key}-${at}` }));
  }
  // Of six responses of 6.5 kB the workspace may keep two.
  await until(async () => (await claims()).length === 2);
  const keys = await probe.keys('*');
  const found: string[] = [];
  for (const key of keys) {
    expect([key, await probe.pttl(key)]).not.toEqual([key, -1]);
    const dump = (await probe.dumpBuffer(key)).toString('latin1');
    for (const word of Object.values(canary))
      if (`${key} ${dump}`.includes(word)) found.push(`${word} in ${key}`);
  }
  expect(found).toEqual([]);
});

test('a repeat is answered although its replica refuses further calls of its lane, and a refused call without a key asks Redis for no claim', async () => {
  const responses: (() => void)[] = [];
  const { send, bodies, waiting } = await fleet(
    (response, count) => responses.push(() => response.end(`response ${count}`)),
    '',
    ', maxQueued: 1',
  );
  const [kept, held] = [{ 'idempotency-key': 'kept' }, { 'idempotency-key': 'held' }];
  const first = textOf(send(0, 'kept', kept));
  await until(() => bodies.length === 1);
  responses.splice(0).forEach((respond) => respond());
  expect(await first).toBe('response 1');
  const underWay = textOf(send(0, 'held', held));
  await until(() => bodies.length === 2);
  const waits = textOf(send(0, 'waits', {}));
  await until(() => waiting() > 0);

  const commands = await monitorRedis(redis.port);
  const refusals = [];
  for (let at = 0; at < 3; at += 1) refusals.push(codeOf(await send(1, 'other', {})));
  // Of claims there are renewals of the calls above.
  const names = await claims();
  const asked = commands.lines.filter(
    (line) => line.includes('{repeat.4:') && !names.some((name) => line.includes(name)),
  );
  commands.stop();
  expect(refusals).toEqual(['queue_full', 'queue_full', 'queue_full']);
  expect(asked).toEqual([]);

  const again = await send(1, 'kept', kept);
  expect([await again.text(), again.headers.get('sluice-replayed')]).toEqual(['response 1', 'true']);
  const joined = textOf(send(1, 'held', held));
  expect(codeOf(await send(1, 'new', { 'idempotency-key': 'new' }))).toBe('queue_full');
  responses.splice(0).forEach((respond) => respond());
  expect(await joined).toBe('response 2');
  await underWay;
  await until(() => bodies.length === 3);
  responses.splice(0).forEach((respond) => respond());
  await waits;
  expect(bodies).toEqual(['kept', 'held', 'waits']);
});

test('repeats of a kept response that cannot be decrypted get 409, make no upstream call, and are logged once', async () => {
  const { send, bodies, logs } = await fleet((response) => response.end(canary.response));
  for (const name of ['one', 'two']) {
    await textOf(send(0, name, { 'idempotency-key': name }));
  }
  await until(async () => (await claims()).length === 2);
  // A claim under way would be renewed.
  await until(areKept);
  for (const key of await claims()) await probe.set(key, 'of somebody else', 'KEEPTTL');
  for (const name of ['one', 'two', 'one']) {
    const again = await send(1, name, { 'idempotency-key': name });
    expect([again.status, codeOf(again), again.headers.get('x-should-retry')]).toEqual([
      409,
      'idempotency_conflict',
      'false',
    ]);
  }
  expect(bodies).toEqual(['one', 'two']);
  expect(logs.filter((line) => line.includes('cannot be opened'))).toHaveLength(1);
});
