/** The table of client time-outs with the fields that such clients send; `test/sdk/client-timeouts.test.ts` asks real ones. */
import { describe, expect, test } from '@jest/globals';
import { clientTimeouts } from '../../src/journey/preferences.policy.ts';

const timeoutsOf = (fields: Readonly<Record<string, string>>) =>
  clientTimeouts(new Map(Object.entries(fields)));

describe('the time-out stated by a call', () => {
  test.each([
    [{ 'x-stainless-timeout': '600' }, 600],
    [{ 'x-stainless-timeout': '0' }, 0],
    [{ 'x-stainless-read-timeout': '600.0' }, 600],
    [{ 'x-stainless-read-timeout': '0.5' }, 0.5],
    [{ 'x-server-timeout': '90' }, 90],
    [{ 'x-stainless-timeout': '30', 'x-stainless-read-timeout': '20' }, 20],
    [{ 'x-stainless-timeout': 'NOT_GIVEN', 'x-stainless-read-timeout': '20' }, 20],
    [{}, null],
  ])('is read from the fields %j as %s s', (fields, seconds) =>
    expect(timeoutsOf(fields).statedSeconds).toBe(seconds),
  );

  test.each(['', '-5', 'NaN', 'Infinity', '1e3', '0x10', '5 s', ' ', '12345678901'])(
    'is unknown when the field says %j',
    (text) => {
      expect(timeoutsOf({ 'x-stainless-timeout': text })).toEqual({
        statedSeconds: null,
        knownSeconds: null,
      });
    },
  );
});

describe('the time-out known of a client', () => {
  const openai = { 'user-agent': 'OpenAI/JS 6.49.0', 'x-stainless-lang': 'js' };
  const groq = { 'user-agent': 'Groq/JS 1.6.0', 'x-stainless-lang': 'js' };

  test.each([
    ['shopify-api-node', { 'user-agent': 'shopify-api-node/3.15.0' }, 60],
    ['groq-sdk on Node', { ...groq, 'x-stainless-runtime': 'node' }, 60],
    ['groq-sdk elsewhere', { ...groq, 'x-stainless-runtime': 'deno' }, 60],
    ['openai on Node', { ...openai, 'x-stainless-runtime': 'node' }, 300],
    ['openai elsewhere', { ...openai, 'x-stainless-runtime': 'deno' }, 600],
    ['openai for Azure', { 'user-agent': 'AzureOpenAI/JS 6.49.0', 'x-stainless-runtime': 'edge' }, 600],
    ['the AI SDK', { 'user-agent': 'ai/6.0.326 ai-sdk/provider-utils/4.0.0 runtime/node.js/v24.18.1' }, 300],
    ['the Admin API client', { 'user-agent': 'Admin API Client v2.0.0' }, 300],
    ['the Admin API client of an application', { 'user-agent': 'app | Admin API Client v2.0.0' }, 300],
    ['Node’s fetch', { 'user-agent': 'node' }, 300],
    ['undici', { 'user-agent': 'undici' }, 300],
    ['an unknown client', { 'user-agent': 'curl/8.5.0' }, null],
    ['a client that only mentions another', { 'user-agent': 'my-shopify-api-node/1 (node)' }, null],
    [
      'openai in Python, which states its own',
      { 'user-agent': 'OpenAI/Python 2.52.0', 'x-stainless-runtime': 'CPython' },
      null,
    ],
  ])('is looked up by the user agent of %s', (_, fields, seconds) =>
    expect(timeoutsOf(fields).knownSeconds).toBe(seconds),
  );

  test('yields to the one stated by the call, except for the limit of its transport', () => {
    expect(timeoutsOf({ ...groq, 'x-stainless-runtime': 'node', 'x-stainless-timeout': '120' })).toEqual({
      statedSeconds: 120,
      knownSeconds: 300,
    });
    expect(timeoutsOf({ ...groq, 'x-stainless-runtime': 'deno', 'x-stainless-timeout': '120' })).toEqual({
      statedSeconds: 120,
      knownSeconds: null,
    });
  });
});
