import { afterEach, expect, test } from '@jest/globals';
import { highCeilings, startWorld, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

/** The calls `loop1` to `loop5`, `ann1`, `ann2`, `bob1` wait behind an occupied shop; the order in which it sees them afterwards. */
async function orderOf(
  workspace: string,
  of: (caller: string) => object,
  meanwhile: () => Promise<void> = async () => {},
): Promise<string[]> {
  world = await startWorld({ workspaces: { acme: highCeilings + workspace } });
  const { call, orders, shop, settled, occupy } = world;
  await orders('warm');
  const release = await occupy();
  const line = ['loop1', 'loop2', 'loop3', 'loop4', 'loop5', 'ann1', 'ann2', 'bob1'];
  const calls: Promise<unknown>[] = [];
  for (const [at, name] of line.entries()) {
    const { headers = {}, ...sending } = of(name.slice(0, -1)) as { headers?: object };
    const path = '/via/shop/admin/api/2024-07/orders.json';
    calls.push(call(path, { ...sending, headers: { ...headers, 'x-nonce': name } }));
    await settled(at + 1, 1);
  }
  await meanwhile();
  await release();
  await Promise.all(calls);
  return shop.log.map(({ nonce }) => nonce).slice(2);
}

/** Each caller's calls in their order, and nobody's second call before everybody's first. */
function expectTurns(order: readonly string[]): void {
  expect(order.filter((name) => name.startsWith('loop'))).toEqual([
    'loop1',
    'loop2',
    'loop3',
    'loop4',
    'loop5',
  ]);
  expect(order.slice(0, 3).toSorted()).toEqual(['ann1', 'bob1', 'loop1']);
  expect(order.slice(3, 5).toSorted()).toEqual(['ann2', 'loop2']);
}

test('callers of a workspace take turns, as a field of their calls names them', async () => {
  let shown: readonly { caller: string; waiting: number; inFlight: number }[] = [];
  const order = await orderOf(
    '    callers: { by: "header:x-agent" }\n',
    (caller) => ({ headers: { 'x-agent': caller } }),
    async () => {
      const activity = (await (await fetch(`${world.gateway.adminUrl}/activity`)).json()) as {
        workspaces: { upstreams: { upstream: string; callers: typeof shown }[] }[];
      };
      shown = activity.workspaces[0]?.upstreams.find(({ upstream }) => upstream === 'shop')?.callers ?? [];
    },
  );
  expectTurns(order);
  expect(shown.map(({ waiting, inFlight }) => [waiting, inFlight])).toEqual([
    [5, 0],
    [2, 0],
    [1, 0],
  ]);
  const lines = world.gateway.logs.filter((line) => line.includes('call ended'));
  const named = lines.flatMap((line) => (JSON.parse(line) as { caller?: string }).caller ?? []);
  expect(new Set(named)).toEqual(new Set(shown.map(({ caller }) => caller)));
  expect(named.every((caller) => /^c_[0-9a-f]{16}$/.test(caller))).toBe(true);
  const metrics = await (await fetch(`${world.gateway.adminUrl}/metrics`)).text();
  for (const caller of named) expect(metrics).not.toContain(caller);
});

test('callers of a workspace take turns, as a member of their bodies names them', async () => {
  const order = await orderOf('    callers: { by: "body:/user/id" }\n', (caller) => ({
    method: 'POST',
    json: { user: { id: caller } },
    headers: {},
  }));
  expectTurns(order);
});

test('without callers a workspace has its calls in the order of their arrival', async () => {
  const order = await orderOf('', (caller) => ({ headers: { 'x-agent': caller } }));
  expect(order).toEqual(['loop1', 'loop2', 'loop3', 'loop4', 'loop5', 'ann1', 'ann2', 'bob1']);
  expect(world.gateway.logs.some((line) => line.includes('"caller"'))).toBe(false);
});
