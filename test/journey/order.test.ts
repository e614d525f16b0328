/** Who goes first: calls of a lane in order, one in flight on a commerce bucket, urgency, callers, background. */
import { afterEach, expect, test } from '@jest/globals';
import { adminText, closeAll, highCeilings, many } from './world.ts';
import { nonces, startWorld, tally, type Sending } from './world.ts';

afterEach(closeAll);

test('calls of a workspace on a commerce bucket go by urgency, and in their order where it is the same', async () => {
  const { behindOccupied, orders } = await startWorld();
  const { log } = await behindOccupied(['3a', '3b', '0a', '7a', '6a', '0b', '3c', '7b'], (name) =>
    orders(name, { headers: name.startsWith('3') ? {} : { priority: `u=${name[0] ?? ''}` } }),
  );
  expect(nonces(log)).toEqual(['0a', '0b', '3a', '3b', '3c', '6a', '7a', '7b']);
});

test.each<[string, string, (caller: string) => Sending]>([
  ['a field', 'header:x-agent', (caller) => ({ headers: { 'x-agent': caller } })],
  ['a member of the body', 'body:/user/id', (caller) => ({ json: { user: { id: caller } } })],
])('callers, as %s of their calls names them, take turns, and are shown as digests', async (_, by, of) => {
  const world = await startWorld({ workspaces: { acme: `${highCeilings}    callers: { by: "${by}" }\n` } });
  const { gateway, orders, behindOccupied } = world;
  const shownAsDigests = async (): Promise<void> => {
    const { workspaces } = JSON.parse(await adminText(gateway, '/activity')) as {
      workspaces: { upstreams: { upstream: string; callers: { caller: string; waiting: number }[] }[] }[];
    };
    const shown = workspaces[0]?.upstreams.find(({ upstream }) => upstream === 'shop')?.callers ?? [];
    expect(shown.map(({ waiting }) => waiting)).toEqual([5, 2, 1]);
    for (const { caller } of shown) {
      expect(caller).toMatch(/^c_[0-9a-f]{16}$/);
      expect(await adminText(gateway, '/metrics')).not.toContain(caller);
    }
  };
  const line = ['loop1', 'loop2', 'loop3', 'loop4', 'loop5', 'ann1', 'ann2', 'bob1'];
  const send = (name: string) => orders(name, of(name.slice(0, -1)));
  const order = nonces((await behindOccupied(line, send, shownAsDigests)).log);
  expect(gateway.logs.some((text) => text.includes('"caller"'))).toBe(true);
  // Each caller's calls in their order, and nobody's second call before everybody's first.
  expect(order.filter((name) => name.startsWith('loop'))).toEqual(line.slice(0, 5));
  expect(order.slice(0, 3).toSorted()).toEqual(['ann1', 'bob1', 'loop1']);
  expect(order.slice(3, 5).toSorted()).toEqual(['ann2', 'loop2']);
});

test('background calls leave a tenth of the places under a ceiling, and their clients are told of all', async () => {
  const { chat } = await startWorld({ workspaces: { acme: '    requestsPerMinute: { openai: 20 }\n' } });
  const [background, usual] = [{ prefer: 'wait=1', priority: 'u=7' }, { prefer: 'wait=1' }];
  await chat('warm', { headers: background });
  const replies = await Promise.all(many(30, (at) => chat(at, { headers: background })));
  expect(tally(replies)).toEqual({ 200: 17, 429: 13 });
  const sent = replies.filter(({ status }) => status === 200);
  for (const { headers } of sent) expect(headers.get('ratelimit-policy')).toContain('q=20');
  const rest = await Promise.all(many(2, (at) => chat(at, { headers: usual })));
  expect(tally(rest)).toEqual({ 200: 2 });
  expect((await chat('more', { headers: usual })).status).toBe(429);
});
