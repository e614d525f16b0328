/** How long a call may wait, that it is refused at once where that is not enough, and what it is told of its wait. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { parseDictionary } from 'structured-headers';
import { closeAll, logged, startWorld, tally, type Reply } from './world.ts';

afterEach(closeAll);

const waits = (seconds: number) => ({ headers: { prefer: `wait=${seconds}` } });

test('a call that cannot leave within its wait is refused at once by its ceiling, with the true time and no retry beyond 59 s', async () => {
  const workspaces = { acme: '    requestsPerMinute: { openai: 2 }\n' };
  const { chat, model, clock } = await startWorld({ workspaces });
  const startedAt = clock.monotonic();
  expect(tally(await Promise.all([chat(1), chat(2)]))).toEqual({ 200: 2 });
  const { status, error, headers, json, tookMs, ...refused } = await chat(3, waits(45));
  expect([status, error, headers.get('content-type')]).toEqual([
    429,
    'wait_too_long',
    'application/problem+json',
  ]);
  const members = { code: 'wait_too_long', type: 'rate_limit_error' };
  expect(json).toMatchObject({ code: 'wait_too_long', heldBy: 'ceiling_minute', error: members });
  expect([refused.admission, refused.shouldRetry]).toEqual([expect.stringMatching(/^waited=\d+,/), 'false']);
  // Loosely: on a loaded machine a response may take longer than the 50 ms that are promised, but never a wait.
  expect(tookMs).toBeLessThan(1_000);
  const seconds = Number(headers.get('retry-after'));
  // A minute after the two, of which the calls themselves took a moment.
  expect(seconds).toBeGreaterThanOrEqual(60 - (clock.monotonic() - startedAt) / 1_000);
  expect(seconds).toBeLessThanOrEqual(61);
  expect(Number(headers.get('retry-after-ms'))).toBeGreaterThan((seconds - 2) * 1_000);
  expect(headers.get('ratelimit-policy')).toBe('"workspace";q=2;w=60');
  expect(headers.get('ratelimit')).toMatch(RegExp(`^"workspace";r=0;t=(${seconds - 1}|${seconds})$`));
  expect(model.log).toHaveLength(2);
});

describe('a call says in Sluice-Admission and in its log line', () => {
  /** `waited`, and the milliseconds of each cause in `held`. */
  function told({ admission }: Reply) {
    const field = parseDictionary(admission);
    const [members] = field.get('held') ?? [];
    const causes = Array.isArray(members) ? members : [];
    const held = causes.map(([cause, of]) => [String(cause), Number(of.get('ms'))] as const);
    return { waited: Number(field.get('waited')?.[0]), held };
  }

  test('that another one of its workspace was in flight, also in the refusal at the end of its wait', async () => {
    const { occupy, orders, settled, gateway } = await startWorld();
    const release = await occupy();
    const late = orders(1, waits(2));
    await settled(1, 1);
    const sent = orders(2);
    const refused = await late;
    await release();
    const reply = await sent;
    expect([reply.status, refused.error]).toEqual([200, 'wait_expired']);
    for (const each of [reply, refused]) {
      expect(told(each).held[0]).toEqual(['serialized', expect.any(Number)]);
      expect(await logged(gateway, each)).toMatchObject({ heldMs: { serialized: expect.any(Number) } });
    }
  });
});
