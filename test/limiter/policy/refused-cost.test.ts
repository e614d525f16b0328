/** A refusal that states the cost of the refused call: the bucket waits for that cost, not for the estimate. */
import { describe, expect, test } from '@jest/globals';
import { leaseToken } from '../../../src/ids.ts';
import type { Feedback, MeterName } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { admit } from '../../../src/limiter/policy/admit.policy.ts';
import { createBucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import { origins } from './metering.ts';
import { admission } from '../../support/admission.ts';
import { replica, runOn } from './scheduling.ts';

const facts = { fields: new Map<string, string>(), method: 'POST', path: '/', nowMs: 0 };

/** The call asked for 400 points, 300 of 1,000 are free, and 50 drain each second. */
const throttled = learnFrom('commerce', {
  ...facts,
  status: 200,
  callClass: 'graphql',
  body: JSON.stringify({
    errors: [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }],
    extensions: {
      cost: {
        requestedQueryCost: 400,
        actualQueryCost: null,
        throttleStatus: { maximumAvailable: 1000, currentlyAvailable: 300, restoreRate: 50 },
      },
    },
  }),
});

/** The call asked for 12,528 tokens, and 7,001 of 30,000 are free: there is room in 11.054 s. */
const tooMany = learnFrom('language-model', {
  ...facts,
  status: 429,
  callClass: 'default',
  fields: new Map([
    ['x-ratelimit-limit-tokens', '30000'],
    ['x-ratelimit-remaining-tokens', '7001'],
    ['x-ratelimit-reset-tokens', '45.998s'],
  ]),
  body: JSON.stringify({
    error: {
      message:
        'Rate limit reached for gpt-5.1 in organization org-1 on tokens per min (TPM): Limit 30000, Used 22999, ' +
        'Requested 12528. Please try again in 11.054s.',
      type: 'tokens',
      code: 'rate_limit_exceeded',
    },
  }),
});

describe.each(origins)('a call refused on a clock that begins at %d', (from) => {
  test.each<[string, Feedback, MeterName, number, number, number]>([
    ['of GraphQL points', throttled, 'cost', 10, 400, 2_000],
    ['of tokens', tooMany, 'tokens', 50, 12_528, 11_054],
  ])(
    'for lack %s leaves as soon as the cost that its refusal stated has room',
    (_what, feedback, meter, guess, asked, waitMs) => {
      const bucket = createBucket(0, from);
      const call = (ticket: string, units: number) => {
        return admission(ticket, { costs: { [meter]: units } });
      };
      const [grant] = admit(bucket, { admission: call('guessed', guess), replica }, from).effects.grants;
      const head = from + 30;
      const closed = { kind: 'throttled', closeMs: waitMs, requeue: false, sleepMs: 0 } as const;
      settle(
        bucket,
        {
          lease: leaseToken(grant?.lease ?? ''),
          settlement: closed,
          lesson: { feedback, sentAt: from, headAt: head },
        },
        head,
      );
      const again = admit(bucket, { admission: call('known', asked), replica }, head);
      expect(again.kind).toBe('queued');
      const stated = again.kind === 'queued' ? again.forecastMs : Infinity;
      expect(stated).toBeGreaterThanOrEqual(waitMs - 1);
      expect(stated).toBeLessThanOrEqual(waitMs + 100);
      const sentAt = runOn(bucket, head, head + 60_000, []).get('known') ?? Infinity;
      expect(sentAt - head).toBeGreaterThanOrEqual(waitMs - 1);
      expect(sentAt - head).toBeLessThanOrEqual(waitMs + 100);
    },
  );

  test('for lack of tokens goes back into its lane with what it asks for', () => {
    const bucket = createBucket(0, from);
    const guessed = admission('guessed', { costs: { requests: 1, tokens: 50 } });
    const [grant] = admit(bucket, { admission: guessed, replica }, from).effects.grants;
    const closed = { kind: 'throttled', closeMs: 11_054, requeue: true, sleepMs: 0 } as const;
    const lesson = { feedback: tooMany, sentAt: from, headAt: from };
    settle(bucket, { lease: leaseToken(grant?.lease ?? ''), settlement: closed, lesson }, from);
    expect([...bucket.tickets.values()][0]?.costs).toEqual({ requests: 1, tokens: 12_528 });
    expect(bucket.waitingCosts.get('tokens')).toBe(12_528);
  });
});
