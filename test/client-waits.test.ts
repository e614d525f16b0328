import { describe, expect, test } from '@jest/globals';
import { honouredWaitMs } from '../src/client-waits.policy.ts';
import { refusalResponse } from '../src/ingress/respond.ts';

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
