import type { Feedback } from '../../../src/call.ts';
import { describe, expect, test } from '@jest/globals';
import { learnFromStreamEvent as learn } from '../../../src/dispatch/feedback/stream-event.policy.ts';

const now = Date.UTC(2026, 0, 1);
const learnFromStreamEvent = (text: string): Feedback => learn(text, now);

const nothing = { meters: [], throttle: null };
const message =
  'Rate limit reached for gpt-5.1 in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 12528. Please try again in 11.054s.';

describe('an event inside a 200 stream', () => {
  test('teaches, for a chat error, what the refusal with the same error teaches', () => {
    const reported = learnFromStreamEvent(
      JSON.stringify({ error: { code: 'rate_limit_exceeded', type: 'tokens', message } }),
    );
    expect(reported).toEqual({
      meters: [
        { meter: 'tokens', limit: 30_000, windowMs: 60_000, level: { lowest: 22_998, highest: 22_999 } },
      ],
      throttle: { kind: 'rate', waitMs: 11_054, meter: 'tokens' },
      errorStatus: 429,
      requestedTokens: 12_528,
      scope: { organization: 'org-A' },
    });
  });

  test('is understood as response.failed, with its data: prefix or without', () => {
    const event = JSON.stringify({
      type: 'response.failed',
      response: { error: { code: 'rate_limit_exceeded', message } },
    });
    expect(learnFromStreamEvent(`data: ${event}\n\n`).throttle).toMatchObject({
      kind: 'rate',
      waitMs: 11_054,
    });
    expect(learnFromStreamEvent(event).throttle).toMatchObject({ kind: 'rate', waitMs: 11_054 });
  });

  test.each([
    [
      { error: { code: 'insufficient_quota', type: 'insufficient_quota' } },
      { kind: 'permanent', reason: 'quota' },
    ],
    [{ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }, { kind: 'overload' }],
  ])('is a refusal: %j', (event, throttle) => {
    expect(learnFromStreamEvent(JSON.stringify(event)).throttle).toMatchObject(throttle);
  });

  test('teaches its status alone when it is an error and no refusal', () => {
    expect(learnFromStreamEvent('{"error":{"type":"server_error","message":"boom"}}')).toEqual({
      ...nothing,
      errorStatus: 500,
    });
  });

  test.each([
    '[DONE]',
    '',
    '{"choices":[{"delta":{"content":"hi"}}],"usage":null}',
    '{"error":',
    JSON.stringify({ choices: [{ delta: { content: '{"error":{"code":"insufficient_quota"}}' } }] }),
    JSON.stringify({ response: { error: null } }),
  ])('teaches nothing when it is %p', (text) => {
    expect(learnFromStreamEvent(text)).toEqual(nothing);
  });
});
