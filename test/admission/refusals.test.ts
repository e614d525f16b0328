/** A refusal names what holds the call, and whose that is. */
import { describe, expect, test } from '@jest/globals';
import { refusedBy, tooLate } from '../../src/admission/refusals.ts';
import { heldByReasons, type HeldBy } from '../../src/errors.ts';

const words: Readonly<Record<HeldBy, RegExp>> = {
  ceiling_minute: /^The workspace has used up its requests per minute /,
  ceiling_day: /^The workspace has used up its requests per day /,
  closed: /named a time before which nothing may be sent; .* can lift it \(`sluice open`\)/,
  requests: /upstream's quota of requests is used up/,
  tokens: /upstream's quota of tokens is used up/,
  cost: /upstream's quota of cost points is used up/,
  upstream_day: /upstream's quota of the day is used up/,
  serialized: /`maxInFlight`/,
  queue: /Other calls are waiting/,
  paused: /An operator has paused this upstream/,
  credential: /credential for this upstream has ended/,
};

describe('the detail of a refusal', () => {
  test.each(heldByReasons)(
    'says that %s holds the call, when it arrives and when it has waited',
    (heldBy) => {
      const reply = { kind: 'refused', reason: 'wait_too_long', retryInMs: 2_500, ahead: 0, heldBy } as const;
      const code = heldBy.endsWith('_day') ? 'day_quota_exhausted' : null;
      const arrived = refusedBy(reply, { maxWaitIfAskedMs: 3_000 });
      const waited = tooLate({ waitMs: 2_500, heldBy });
      expect([arrived.code, waited.code]).toEqual([code ?? 'wait_too_long', code ?? 'wait_expired']);
      for (const { details } of [arrived, waited])
        expect(details).toMatchObject({
          heldBy,
          retryInMs: 2_500,
          detail: expect.stringMatching(words[heldBy]),
        });
      expect(arrived.details.detail).toMatch(/ Prefer: wait=3 lets it wait\.$/);
    },
  );

  test('of a full queue says how to have room', () => {
    const reply = { kind: 'refused', reason: 'queue_full', retryInMs: 1, ahead: 0, heldBy: 'queue' } as const;
    const { code, details } = refusedBy(reply, { maxWaitIfAskedMs: 3_000 });
    expect([code, details.heldBy, details.detail]).toEqual([
      'queue_full',
      'queue',
      expect.stringContaining('send fewer at once'),
    ]);
  });
});
