/** `/recording` and `sluice record` beside running gateways: what is written of which calls, for whom, and when it ends. */
import { get, type IncomingMessage } from 'node:http';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import express from 'express';
import { systemClock } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { bucketKey, laneKey } from '../../src/ids.ts';
import { recordedCall, recordingHeader, type RecordedCall } from '../../src/recording/format.ts';
import { createRecorder, type Arrival } from '../../src/recording/recorder.ts';
import { quota } from '../dispatch/feedback/learning.ts';
import { begun, ran } from '../support/command.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { listening, type Listening } from '../support/listening.ts';
import { skippingClock } from '../support/skipping-clock.ts';
import { connectRaw } from '../support/raw-client.ts';
import { until } from '../support/until.ts';

const stated = {
  'content-type': 'application/json',
  ...quota('requests', 60, 50, '10s'),
  'x-ratelimit-limit-tokens': '9000',
  'x-ratelimit-remaining-tokens': '7654',
};
const usage = { prompt_tokens: 30, completion_tokens: 12, total_tokens: 42 };
let upstream: Listening;
let held: (() => void)[] = [];
/** So many requests are refused for 5 s. */
let refusals = 0;
let gateways: readonly TestGateway[];
let gateway: TestGateway;
/** Of the gateways. */
const clock = skippingClock();

beforeAll(async () => {
  upstream = await listening((request, response) => {
    const end = () => response.writeHead(200, stated).end(JSON.stringify({ usage }));
    if (request.url === '/held') held.push(end);
    else if (refusals > 0) {
      refusals -= 1;
      response.writeHead(429, { 'retry-after': '5' }).end();
    } else request.resume().on('end', end);
  });
  const origins = `origins: ["${upstream.url}"], allowPrivateAddresses: true`;
  const options = {
    clock,
    upstreams: `  model: { kind: language-model, ${origins} }\n  api: { ${origins} }`,
    workspaces: { acme: '    requestsPerMinute: { api: 3 }', other: '    weight: 2' },
  };
  gateways = [await startGateway(options), await startGateway(options)];
  [gateway] = gateways as [TestGateway];
});
afterAll(async () => {
  await Promise.all(gateways.map((each) => each.close()));
  await upstream.close();
});

const send = (path: string, { to = gateway, as = 'acme', fields = {} } = {}) =>
  fetch(`${to.url}/via/${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${to.keys[as]}`, 'content-type': 'application/json', ...fields },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hello' }], max_tokens: 100 }),
  }).then((response) => response.text().then(() => response.status));

/** A recording that is under way: its reader has the first line. `text`: all of it, once it has ended. */
async function begin(seconds: number) {
  const response = await new Promise<IncomingMessage>((resolve) =>
    get(`${gateway.adminUrl}/recording?seconds=${seconds}`, resolve),
  );
  const chunks: Buffer[] = [];
  response.on('data', (chunk: Buffer) => chunks.push(chunk));
  const ended = new Promise((resolve) => response.on('close', resolve));
  await until(() => chunks.length > 0);
  return { response, bytes: () => ended.then(() => Buffer.concat(chunks)) };
}

const read = (text: string) => {
  const [first = '', ...lines] = text.trim().split('\n');
  return {
    header: recordingHeader.parse(JSON.parse(first)),
    // As they arrived: they are written as they end.
    calls: lines.map((line) => recordedCall.parse(JSON.parse(line))).toSorted((a, b) => a.at - b.at),
  };
};

test('each call is written when it ends, with what it took and what was learned of its bucket; refused ones as well', async () => {
  const recording = await begin(60);
  await send('model/v1/chat/completions');
  await send('model/v1/chat/completions', { as: 'other', fields: { priority: 'u=1', prefer: 'wait=20' } });
  for (let n = 0; n < 4; n += 1)
    await send('api/x', { fields: { prefer: `${n === 3 ? 'reserve, ' : ''}wait=0` } });
  const late = send('model/held');
  await until(() => held.length > 0);
  // The recording takes no calls any more, and still waits for the end of this one.
  clock.skip(60_000);
  await send('api/x', { as: 'other' });
  held.forEach((end) => end());
  held = [];
  await late;
  const { header, calls } = read((await recording.bytes()).toString());
  const label = (name: string) => workspaceLabel('a label key for tests only', name);

  expect(header.limits.upstreams['model']).toMatchObject({
    ceiling: { perMinute: 500, perDay: 10_000 },
    isDefault: { perMinute: true, perDay: true },
    buckets: {},
  });
  expect(header.limits.workspaces).toEqual({
    [label('acme')]: { weight: 1, perMinute: { api: 3 }, perDay: {} },
    [label('other')]: { weight: 2, perMinute: {}, perDay: {} },
  });
  const whose = { [label('acme')]: 'acme', [label('other')]: 'other' };
  expect(calls.map(({ upstream: to, outcome, workspace }) => `${to} ${outcome} ${whose[workspace]}`)).toEqual(
    [
      'model ok acme',
      'model ok other',
      'api ok acme',
      'api ok acme',
      'api ok acme',
      'api shed acme',
      'model ok acme',
    ],
  );
  const [first, second] = calls;
  expect(first).toMatchObject({
    // The same counts against the day, and is not written twice.
    costs: { requests: 1, tokens: expect.any(Number) },
    charged: { requests: 1, tokens: 42 },
    // Of requests what counts is what was reserved.
    stated: { tokens: 1_345.5 },
    maxWaitMs: 75_000,
    caller: null,
  });
  expect(Object.keys(first?.costs ?? {})).toEqual(['requests', 'tokens']);
  expect(second).toMatchObject({ urgency: 1, maxWaitMs: 20_000, asked: true });
  expect(first?.asked).toBeUndefined();
  // One lane of each workspace and bucket, and one reservation, of the call that was told to come back.
  const lanes = calls.map(({ lane = '' }) => /^l_[0-9a-f]{16}$/.exec(lane)?.[0]);
  expect(lanes.map((lane) => lanes.indexOf(lane))).toEqual([0, 1, 2, 2, 2, 2, 0]);
  const reserved = calls.map(({ reservation = '' }) => /^r_[0-9a-f]{16}$/.test(reservation ?? ''));
  expect(reserved).toEqual(calls.map((_, at) => at === 5));
  expect(calls[5]).toMatchObject({ charged: {}, serviceMs: null });
  expect(calls[6]?.serviceMs).toBeGreaterThan(59_000);
  const learned = calls.flatMap(({ limits = [] }) => limits);
  expect(learned).toContainEqual({ meter: 'requests', limit: 60, windowMs: 60_000, isStated: true });
});

test('what was used when it began is written, and when the upstream was closed', async () => {
  await send('model/v1/chat/completions', { as: 'other' });
  const recording = await begin(600);
  refusals = 1;
  let status: number | null = null;
  void send('model/v1/chat/completions', { as: 'other' }).then((got) => (status = got));
  await until(() => {
    clock.skip(1_000);
    return status !== null;
  });
  expect(status).toBe(200);
  clock.skip(600_000);
  const { header, calls } = read((await recording.bytes()).toString());
  const meters = Object.values(header.limits.upstreams['model']?.buckets ?? {}).flat();
  // The response had stated 10 of 60.
  const used = meters.flatMap(({ meter, used: units = 0 }) => (meter === 'requests' ? [units] : []));
  expect(Math.max(...used)).toBeGreaterThan(1);
  expect(calls.map(({ closings = [] }) => closings.length)).toEqual([1]);
  expect(calls[0]?.closings?.[0]?.forMs).toBeGreaterThanOrEqual(5_000);
});

test('a reader that does not read is told that it was too slow, and holds no memory', async () => {
  const recorder = createRecorder({
    clock: systemClock,
    settings: () => parseSettings(gateway.yaml, { path: 'test.yaml', env: {} }),
    labelOf: (id) => `w_${id}`,
    buckets: () => [],
  });
  const app = express().get('/recording', (request, response) => recorder.open(request, response));
  const server = await listening(app);
  const client = await connectRaw(server.port);
  client.socket.pause();
  await client.send('GET /recording?seconds=600 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
  await until(() => recorder.isRecording);
  const request = {
    subject: { upstream: 'api' },
    admission: { bucket: bucketKey('log.bucket'), lane: laneKey('lane'), urgency: 3, costs: { requests: 1 } },
    workspaceId: 'acme',
    maxWaitMs: 1,
  } as Arrival['request'];
  const placeNow = () => request.admission;
  const arrival = { route: { upstream: { dialect: null } }, asksForWait: false };
  await until(async () => {
    for (let n = 0; n < 1_000; n += 1) recorder.arrived({ ...arrival, request }, placeNow).ended('ok', 0, 0);
    await new Promise(setImmediate);
    return !recorder.isRecording;
  }, 0);
  client.socket.resume();
  const { bytes } = await client.closed;
  expect(bytes.toString()).toMatch(/\{"sluice":"recording","ended":"reader_too_slow"\}\s+(?:0\s+)?$/);
  await server.close();
});

describe('who may record', () => {
  test.each(['', '?seconds=0', '?seconds=601', '?seconds=1.5', '?seconds=11m', '?seconds=x'])(
    '%s is refused with what to give',
    async (query) => {
      const response = await fetch(`${gateway.adminUrl}/recording${query}`);
      expect(response.status).toBe(400);
      expect(await response.text()).toContain('from 1 to 600');
    },
  );

  test('four at a time; there is room again when one has left', async () => {
    const four = await Promise.all(Array.from({ length: 4 }, () => begin(600)));
    expect((await fetch(`${gateway.adminUrl}/recording?seconds=1`)).status).toBe(503);
    for (const { response } of four) response.destroy();
    await until(async () => {
      const response = await fetch(`${gateway.adminUrl}/recording?seconds=1`);
      await response.body?.cancel();
      return response.status === 200;
    });
  });
});

/** What is written goes to a file, and somebody reads what is said. */
const terminals = { out: null, err: true };

describe('sluice record', () => {
  test('merges the calls of several replicas by time, from the earliest start', async () => {
    const admins = gateways.flatMap(({ adminUrl }) => ['--admin', adminUrl]);
    const earlier = begun(['record', '--seconds', '50', ...admins.slice(0, 2)], terminals);
    const both = begun(['record', '--seconds', '1m', ...admins], terminals);
    await until(() => [earlier, both].every(({ err }) => err.join().includes('Recording for')));
    let sent = 0;
    await until(async () => {
      for (const to of gateways) sent += Number((await send('api/x', { to, as: 'other' })) === 200);
      return sent >= 20;
    });
    clock.skip(60_000);
    expect([await earlier.ended, await both.ended]).toEqual([0, 0]);
    const text = both.out.join('\n');
    const lines = text.split('\n').slice(1);
    const times = lines.map((line) => (JSON.parse(line) as RecordedCall).at);
    const { header, calls } = read(text);
    expect(Object.keys(header.limits.upstreams)).toEqual(['model', 'api']);
    expect(calls.length).toBeGreaterThan(0);
    expect(times).toEqual(calls.map(({ at }) => at));
    // Both gateways have one label key: the workspace is the same one.
    expect(new Set(calls.map(({ workspace }) => workspace)).size).toBe(1);
    expect(both.out.join()).not.toContain('other');
  });

  test.each([
    [['--seconds', '0'], /--seconds is a time/],
    [['--seconds', '11m'], /--seconds is a time/],
    [['--seconds', '1', '--admin', 'nowhere'], /--admin is a URL/],
  ])('%j is a mistake', async (args, said) =>
    expect(await ran(['record', ...args])).toMatchObject({ code: 2, err: expect.stringMatching(said) }),
  );
});
