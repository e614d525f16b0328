import { describe, expect, test } from '@jest/globals';
import {
  clientTimeouts,
  type ClientTimeouts,
  honouredWaitMs,
  maxWaitMsOf,
  preferredWaitSeconds,
  urgencyOf,
} from '../src/client-waits.policy.ts';
import { refusalResponse } from '../src/ingress/respond.ts';
import { RecentResponses } from '../src/journey/recent-responses.ts';

const client = (lang: string, version: string): string[] =>
  `X-Stainless-Lang ${lang} X-Stainless-Package-Version ${version}`.split(' ');

describe('the hint not to retry in a refusal', () => {
  test.each([
    ['no SDK', [], 59, 60],
    ['openai for Python 3.3.1', client('python', '3.3.1'), 120, 121],
    ['openai for Python 2.52.0', client('python', '2.52.0'), 120, 121],
    ['openai for Python 2.51.9', client('python', '2.51.9'), 60, 61],
    ['anthropic for Python 0.121', client('python', '0.121.0'), 60, 61],
    ['openai for JavaScript 7.5.0', client('js', '7.5.0'), 60, 61],
    ['openai for JavaScript 6.49.0', client('js', '6.49.0'), 59, 60],
    ['openai for JavaScript 7.4.9', client('js', '7.4.9'), 59, 60],
    ['openai for JavaScript 6.0.1', client('js', '6.0.1'), 59, 60],
    ['openai for JavaScript 4.104', client('js', '4.104.0'), 59, 60],
    ['Anthropic for JavaScript 0.120', client('js', '0.120.0'), 59, 60],
    ['groq for JavaScript 1.6', client('js', '1.6.0'), 59, 60],
    ['an unknown language', client('go', '3.0.0'), 59, 60],
    ['a version that is none', client('python', 'newest'), 59, 60],
  ])('depends on the waits that the client honours: %s', (_name, rawFields, honoured, tooLong) => {
    const hint = (seconds: number): string | undefined => {
      const details = { retryInMs: seconds * 1_000 };
      const { fields } = refusalResponse({ code: 'wait_too_long', details }, 'r', {}, rawFields);
      const at = fields.indexOf('x-should-retry');
      return at < 0 ? undefined : fields[at + 1];
    };
    expect([hint(honoured), hint(tooLong)]).toEqual([undefined, 'false']);
    expect(honouredWaitMs(rawFields)).toBeGreaterThanOrEqual(honoured * 1_000);
    expect(honouredWaitMs(rawFields)).toBeLessThan(tooLong * 1_000);
  });

  test('is given for the rest of a used-up day, whatever the client honours', () => {
    const details = { retryInMs: 100_000 };
    const rawFields = client('python', '3.0.0');
    const { fields } = refusalResponse({ code: 'day_quota_exhausted', details }, 'r', {}, rawFields);
    expect(fields[fields.indexOf('x-should-retry') + 1]).toBe('false');
  });
});

test.each([
  [undefined, null],
  ['wait=10', 10],
  ['respond-async, wait=10', 10],
  ['respond-async; wait = "7"', 7],
  ['wait=-1', null],
  ['wait=1.5', null],
  ['wait=99999999', null],
  ['wait', null],
  ['nowait=3', null],
])('the preferred wait is read from Prefer: %s as %s s', (field, seconds) =>
  expect(preferredWaitSeconds(field)).toBe(seconds),
);

test.each([
  [undefined, 3],
  ['u=0', 0],
  ['i, u=7', 7],
  ['u=5;x', 5],
  ['u=8', 3],
  ['u=-1', 3],
  ['u=12', 3],
  ['su=1', 3],
  ['', 3],
])('the urgency of a call is read from Priority: %s as %d', (field, urgency) =>
  expect(urgencyOf(field)).toBe(urgency),
);

describe('the wait of a call', () => {
  const limits = { maxWaitSeconds: 75, maxWaitCeilingSeconds: 600 };
  const unknown: ClientTimeouts = { statedSeconds: null, knownSeconds: null };
  const stated = (statedSeconds: number): ClientTimeouts => ({ ...unknown, statedSeconds });
  const known = (knownSeconds: number): ClientTimeouts => ({ ...unknown, knownSeconds });
  const both = (statedSeconds: number, knownSeconds: number) => ({ statedSeconds, knownSeconds });

  test.each<[string, number | null, ClientTimeouts, number, elapsedMs?: number]>([
    ['nothing, of an unknown client', null, unknown, 75_000],
    ['less than the default', 10, unknown, 10_000],
    ['no wait at all', 0, unknown, 0],
    ['more than the ceiling', 9_999, unknown, 600_000],
    ['nothing, of a client that states 30 s', null, stated(30), 25_000],
    ['nothing, of a client that states more than the default and its margin', null, stated(81), 75_000],
    ['nothing, of a client that states just less than that', null, stated(79), 74_000],
    ['nothing, of a client that states as little as the margin', null, stated(6), 2_000],
    ['nothing, of a client that states 3 s', null, stated(3), 1_000],
    ['nothing, of a client that states less than a second', null, stated(0), 0],
    ['less than a client states', 10, stated(600), 10_000],
    ['more than a client states', 90, stated(60), 55_000],
    ['nothing, of a client known for 60 s', null, known(60), 55_000],
    ['more than its client is known for', 90, known(60), 90_000],
    ['nothing, of a client that states more than it is known for', null, both(70, 60), 55_000],
    ['nothing, of a client that states less than it is known for', null, both(20, 60), 15_000],
    ['nothing, 20 s after its head, with a stated time-out', null, stated(30), 5_000, 20_000],
    ['nothing, 20 s after its head, with a known time-out', null, known(30), 5_000, 20_000],
    ['a wait, which begins with itself, 20 s after its head', 60, unknown, 60_000, 20_000],
    ['nothing, of a client that has timed out by now', null, stated(30), 0, 40_000],
  ])('that asks for %s', (_, preferSeconds, client, ms, elapsedMs = 0) => {
    expect(maxWaitMsOf({ preferSeconds, client, elapsedMs }, limits)).toBe(ms);
  });

  test('ends before every time-out, by 5 s or two thirds of it', () => {
    for (let seconds = 1; seconds <= 600; seconds += 1) {
      const waitMs = maxWaitMsOf({ preferSeconds: 600, client: stated(seconds), elapsedMs: 0 }, limits);
      expect(seconds * 1000 - waitMs).toBeGreaterThanOrEqual(Math.min(5_000, (seconds * 2000) / 3) - 1e-6);
    }
  });
});

test('a call is refused alone where others are served meanwhile, and not where the bucket refuses many of them', () => {
  const responses = new RecentResponses();
  const refuse = (count: number): void => {
    for (let n = 0; n < count; n += 1) responses.noteRefused('b');
  };
  refuse(1);
  expect(responses.servesOthersSince('b', 0)).toBe(false);
  responses.noteServed('b', 5);
  refuse(4);
  // The one that was served had been sent before.
  expect(responses.servesOthersSince('b', 5)).toBe(false);
  expect(responses.servesOthersSince('b', 4)).toBe(true);
  refuse(20);
  responses.noteServed('b', 100);
  expect(responses.servesOthersSince('b', 50)).toBe(false);
  for (let at = 101; at < 160; at += 1) responses.noteServed('b', at);
  expect(responses.servesOthersSince('b', 50)).toBe(true);
});

/** With the fields that such clients send; `test/sdk/other-clients.test.ts` asks real ones. */
describe('the time-out of a client', () => {
  const read = (fields: Readonly<Record<string, string>>) => clientTimeouts(new Map(Object.entries(fields)));
  const agent = (name: string, runtime = 'node') => ({ 'user-agent': name, 'x-stainless-runtime': runtime });
  const groq = (runtime: string) => agent('Groq/JS 1.6.0', runtime);

  test.each([
    [{ 'x-stainless-timeout': '600' }, 600],
    [{ 'x-stainless-timeout': '0' }, 0],
    [{ 'x-stainless-read-timeout': '600.0' }, 600],
    [{ 'x-stainless-read-timeout': '0.5' }, 0.5],
    [{ 'x-server-timeout': '90' }, 90],
    [{ 'x-stainless-timeout': '30', 'x-stainless-read-timeout': '20' }, 20],
    [{ 'x-stainless-timeout': 'NOT_GIVEN', 'x-stainless-read-timeout': '20' }, 20],
    [{}, null],
    ...['', '-5', 'NaN', 'Infinity', '1e3', '0x10', '5 s', ' ', '12345678901'].map(
      (text) => [{ 'x-stainless-timeout': text }, null] as const,
    ),
  ])('that a call states is read from %j as %s s', (fields, statedSeconds) =>
    expect(read(fields)).toEqual({ statedSeconds, knownSeconds: null }),
  );

  test.each([
    ['shopify-api-node', agent('shopify-api-node/3.15.0'), 60],
    ['groq-sdk on Node', groq('node'), 60],
    ['groq-sdk elsewhere', groq('deno'), 60],
    ['openai on Node', agent('OpenAI/JS 6.49.0'), 300],
    ['openai elsewhere', agent('OpenAI/JS 6.49.0', 'deno'), 600],
    ['openai for Azure', agent('AzureOpenAI/JS 6.49.0', 'edge'), 600],
    ['the AI SDK', { 'user-agent': 'ai/6.0.326 ai-sdk/provider-utils/4.0.0 runtime/node.js/v24.18.1' }, 300],
    ['the Admin API client', { 'user-agent': 'Admin API Client v2.0.0' }, 300],
    ['the Admin API client of an application', { 'user-agent': 'app | Admin API Client v2.0.0' }, 300],
    ['Node’s fetch', { 'user-agent': 'node' }, 300],
    ['undici', { 'user-agent': 'undici' }, 300],
    ['an unknown client', { 'user-agent': 'curl/8.5.0' }, null],
    ['a client that only mentions another', { 'user-agent': 'my-shopify-api-node/1 (node)' }, null],
    ['openai in Python, which states its own', agent('OpenAI/Python 2.52.0', 'CPython'), null],
  ])('that is known is looked up by the user agent of %s', (_, fields, seconds) =>
    expect(read(fields).knownSeconds).toBe(seconds),
  );

  test('that is known yields to the one stated by the call, except for the limit of its transport', () => {
    const knownOf = (runtime: string) => read({ ...groq(runtime), 'x-stainless-timeout': '120' });
    expect(knownOf('node')).toEqual({ statedSeconds: 120, knownSeconds: 300 });
    expect(knownOf('deno')).toEqual({ statedSeconds: 120, knownSeconds: null });
  });
});
