/** `GET /activity` of a real gateway, as a client and an operator get it: the published shape, and each mistake told by its answer. */
import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { z } from 'zod';
import type { AllActivity, WorkspaceActivity } from '../../src/activity/activity.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { listening, type Listening } from '../support/listening.ts';
import { until } from '../support/until.ts';

const schema = z.fromJSONSchema(
  JSON.parse(readFileSync(new URL('../../schema/activity.schema.json', import.meta.url), 'utf8')) as never,
);
type Answer = readonly [status: number, body: string, fields?: Readonly<Record<string, string>>];
let upstream: Listening;
let gateway: TestGateway;
/** The upstream's next answers. */
let answer: Answer;

beforeEach(async () => {
  answer = [200, '{}'];
  upstream = await listening((request, response) => {
    request.resume();
    const [status, body, fields] = answer;
    response.writeHead(status, { 'content-type': 'application/json', ...fields }).end(body);
  });
});
afterEach(async () => {
  await gateway.close();
  await upstream.close();
});

async function start(more: string, workspace = ''): Promise<void> {
  gateway = await startGateway({
    upstreams: `  api:\n    origins: ["${upstream.url}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"\n    ${more}`,
    workspaces: { acme: workspace === '' ? '' : `    ${workspace}`, idle: '' },
  });
}
const asAcme = (prefer = 'wait=0') => ({ authorization: `Bearer ${gateway.keys['acme'] ?? ''}`, prefer });
/** Calls one after the other, none of which may wait. */
async function calls(count: number): Promise<readonly number[]> {
  const statuses: number[] = [];
  for (let n = 0; n < count; n++) {
    const response = await fetch(`${gateway.url}/via/api/path`, { headers: asAcme() });
    await response.text();
    statuses.push(response.status);
  }
  return statuses;
}
async function control(path: string): Promise<void> {
  const init = { method: 'POST', headers: { 'sluice-admin': 'yes' } };
  expect((await fetch(`${gateway.adminUrl}/upstreams/api/${path}`, init)).status).toBe(200);
}
const said = async (): Promise<AllActivity> =>
  (await (await fetch(`${gateway.adminUrl}/activity`)).json()) as AllActivity;
const metrics = async (): Promise<string> => (await fetch(`${gateway.adminUrl}/metrics`)).text();

describe('the activity of a workspace', () => {
  const own = async (query = ''): Promise<WorkspaceActivity> => {
    const response = await fetch(`${gateway.url}/activity${query}`, { headers: asAcme() });
    expect(response.headers.get('content-type')).toMatch(/^application\/json/);
    return (await response.json()) as WorkspaceActivity;
  };

  test('shows its ceiling, its calls and its headroom; that on the admin port all who called, by label', async () => {
    await start('limits: { requestsPerMinute: 100 }');
    await calls(3);
    const activity = await own('?window=5m');
    expect(() => schema.parse(activity)).not.toThrow();
    expect(activity).toMatchObject({ windowSeconds: 300, replicas: 1 });
    expect(activity.upstreams).toMatchObject([
      {
        upstream: 'api',
        ceilings: { perMinute: { limit: 100, remaining: 97 } },
        waiting: 0,
        inFlight: 0,
        nextSlotMs: 0,
        refusing: null,
        recent: { calls: 3, outcomes: { ok: 3 } },
        headroom: { busiestMinute: 3, usedRatio: 0.03 },
      },
    ]);
    const all = (await (await fetch(`${gateway.adminUrl}/activity?window=90s`)).json()) as AllActivity;
    expect(() => schema.parse(all)).not.toThrow();
    const labels = all.workspaces.map(({ workspace }) => workspace);
    expect([all.windowSeconds, labels]).toEqual([120, [expect.stringMatching(/^w_[0-9a-f]{16}$/)]]);
  });

  test('counts waiting calls of a closed bucket, and its next slot is when the bucket opens', async () => {
    await start('');
    answer = [429, '{}', { 'retry-after': '30' }];
    await calls(1);
    const gone = new AbortController();
    const held = fetch(`${gateway.url}/via/api/path`, { headers: asAcme('wait=60'), signal: gone.signal });
    const left = held.catch(() => null);
    const lane = async () => (await own()).upstreams[0];
    // What is known of buckets is read four times a second.
    await until(async () => (await lane())?.waiting === 1 && (await lane())?.nextSlotMs !== 0);
    const nextSlotMs = (await lane())?.nextSlotMs;
    expect(nextSlotMs).toBeGreaterThan(20_000);
    expect(nextSlotMs).toBeLessThanOrEqual(31_000);
    gone.abort();
    await left;
  });
});

describe('the answer says what an operator did wrong, or what an upstream does:', () => {
  /** So many calls get these answers; what is said then, and of the upstream. */
  async function after(count: number, answers: Answer, ...limits: Parameters<typeof start>) {
    await start(...limits);
    answer = answers;
    await calls(count);
    const { answer: all, upstreams } = await said();
    return { ...all, api: upstreams[0] };
  }

  test('a full ceiling is yours, with its number, whose it is and how many calls came', async () => {
    const { sentence, heldBy, api } = await after(
      5,
      [200, '{}'],
      'limits: { requestsPerMinute: none }',
      'requestsPerMinute: { api: 3 }',
    );
    expect(sentence).toBe('No for api: calls are refused at your ceilings.');
    expect(heldBy).toMatch(
      /^Your ceiling of 3 requests a minute to api for w_[0-9a-f]{16}; 5 were asked for/,
    );
    expect(api).toMatchObject({ limits: [{ owner: 'ceiling', limit: 3, used: 3 }] });
  });

  test('an upstream that refuses the credential', async () => {
    const limit = 'limits: { requestsPerMinute: 60 }';
    const { sentence, wrongNow, next, api } = await after(5, [401, '{"error":"who are you?"}'], limit);
    expect(sentence).toBe('No for api: it answers every call with an error.');
    expect(wrongNow).toMatch(/^5.calls ended so since \d\d:\d\d.UTC\. None wait\. None are refused\./);
    expect(next).toContainEqual({ text: 'Why does each call fail?', command: 'sluice tail' });
    expect(api?.answer).toEqual({ tone: 'red', text: 'No: only errors' });
  });

  test('out of credit, which a refused call and the log name as well', async () => {
    const error = { message: 'x', type: 'insufficient_quota', code: 'insufficient_quota' };
    const { sentence, heldBy } = await after(1, [429, JSON.stringify({ error })], 'kind: language-model');
    expect(sentence).toBe('No for api: it is out of credit.');
    expect(heldBy).toMatch(/insufficient_quota/);
    const response = await fetch(`${gateway.url}/via/api/path`, { headers: asAcme() });
    const detail = /^The upstream refuses such calls with 429 \(insufficient_quota\), which/;
    expect(await response.json()).toMatchObject({ detail: expect.stringMatching(detail) });
    const line = gateway.logs.find((each) => each.includes('refuses calls for good'));
    expect(line).toContain('"said":"insufficient_quota"');

    await control('open');
    expect((await said()).answer).toMatchObject({
      sentence: 'No for api: calls were refused while it refused them for good.',
      heldBy: 'A refusal for good of the last hour, which is over.',
    });
  });

  test('a pause, with its end and the command that ends it, and then what the upstream refuses as its own', async () => {
    await start('');
    await control('pause?seconds=90');
    await calls(2);
    const { answer: all, upstreams } = await said();
    expect(all.sentence).toBe('No for api: an operator paused it.');
    expect(all.heldBy).toMatch(/^The pause since \d\d:\d\d.UTC\. It ends by itself at \d\d:\d\d:\d\d.UTC\.$/);
    expect(all.next).toContainEqual({ text: 'Go on now', command: 'sluice resume --upstream api' });
    expect(upstreams[0]?.lastHour.heldBy).toEqual({ paused: 2 });
    expect(await metrics()).toContain('sluice_upstream_paused{upstream="api"} 1\n');

    await control('resume');
    expect((await said()).answer).toMatchObject({
      sentence: 'No for api: calls were refused while it was paused.',
      heldBy: 'A pause of the last hour, which is over.',
    });
    answer = [429, '{"error":"slow down"}'];
    await calls(2);
    const own = 'No for api: it says “too many requests”.';
    expect((await said()).answer.sentence).toBe(own);
  });
});
