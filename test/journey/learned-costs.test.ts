import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { inversions, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

/** Ten reads at once, of a document that asks for 500 of the 2,000 points; 100 come back each second. */
async function tenQueries(more: { readonly actual: number; readonly shopMore?: string }): Promise<void> {
  const { shopMore } = more;
  world = await startWorld({ clock: fastClock(8), ...(shopMore === undefined ? {} : { shopMore }) });
  const { graphql, shop, settled, occupy } = world;
  const release = shopMore === undefined ? await occupy() : async () => {};
  const query = `# sim: requested=500 actual=${more.actual} ms=200\nquery($nonce: String) { shop { name } }`;
  const calls: ReturnType<typeof graphql>[] = [];
  for (let at = 0; at < 10; at += 1) {
    calls.push(graphql(query, { variables: { nonce: String(at) }, headers: { prefer: 'wait=120' } }));
    if (shopMore === undefined) await settled(at + 1, 1);
  }
  await release();
  const replies = await Promise.all(calls);
  expect(tally(replies)).toEqual({ 200: 10 });
  expect(replies.filter(({ text }) => text.includes('THROTTLED'))).toEqual([]);
  const log = shop.log.filter(({ path }) => path.includes('graphql'));
  expect(log.map(({ decision }) => decision)).toEqual(Array(10).fill('admitted'));
  if (shopMore === undefined) expect(inversions(log)).toBe(0);
}

test('expensive GraphQL queries of an unknown document are never throttled', async () => {
  await tenQueries({ actual: 500 });
});

test('expensive GraphQL queries of an unknown document are never throttled when a workspace may have several in flight', async () => {
  await tenQueries({ actual: 20, shopMore: '    maxInFlight: none\n' });
});
