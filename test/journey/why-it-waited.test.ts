/** A call that waited says for what and for how long: in `Sluice-Admission` and in its log line. */
import { afterEach, expect, test } from '@jest/globals';
import { parseDictionary } from 'structured-headers';
import { until } from '../support/until.ts';
import { startWorld, type Reply, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

/** `waited`, and what `held` names, of the field; the field without `held` has no causes. */
function told({ headers }: Reply): { waited: number; held: Record<string, number> } {
  const field = parseDictionary(headers.get('sluice-admission') ?? '');
  const [members] = field.get('held') ?? [];
  const causes = Array.isArray(members) ? members : [];
  return {
    waited: Number(field.get('waited')?.[0]),
    held: Object.fromEntries(causes.map(([cause, of]) => [String(cause), Number(of.get('ms'))])),
  };
}

/** The log line of a call, once it is written. */
async function logged({ headers }: Reply): Promise<Record<string, unknown>> {
  const id = headers.get('sluice-request-id') ?? '';
  const line = (): string | undefined => world.gateway.logs.find((each) => each.includes(id));
  await until(() => line() !== undefined);
  return JSON.parse(line() ?? '{}') as Record<string, unknown>;
}

test('a call that its bucket kept from the upstream until Retry-After was over says closed', async () => {
  world = await startWorld();
  world.model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '1' }, body: {} });
  const reply = await world.chat(1);
  expect(reply.status).toBe(200);
  const { waited, held } = told(reply);
  expect(Object.keys(held)[0]).toBe('closed');
  expect(held['closed']).toBeGreaterThan(900);
  expect(held['closed']).toBeLessThanOrEqual(waited);
  const { heldMs, waitedMs } = await logged(reply);
  expect(Object.keys(heldMs as object)).toEqual(Object.keys(held));
  // The log has tenths, the field whole milliseconds: both are rounded.
  const { closed = 0 } = heldMs as Record<string, number>;
  expect(Math.abs(closed - (held['closed'] ?? 0))).toBeLessThan(1);
  expect(waitedMs).toBeGreaterThan(900);
});

test('a call behind another one of its workspace says serialized, also in the refusal at the end of its wait', async () => {
  world = await startWorld();
  const release = await world.occupy();
  const late = world.orders(1, { headers: { prefer: 'wait=2' } });
  await world.settled(1, 1);
  const sent = world.orders(2);
  const refused = await late;
  await world.settled(1, 1);
  await release();
  const reply = await sent;
  expect([reply.status, refused.status]).toEqual([200, 429]);
  expect(refused.headers.get('sluice-error')).toBe('wait_expired');
  for (const each of [reply, refused]) {
    // The upstream may notice the end of the call in flight later than Sluice, and throttle the next one.
    expect(Object.keys(told(each).held)[0]).toBe('serialized');
    expect(told(each).held['serialized']).toBeGreaterThan(0);
    expect(await logged(each)).toMatchObject({ heldMs: { serialized: expect.any(Number) } });
  }
});

test('a call says how many of its workspace stood before it when it came', async () => {
  world = await startWorld();
  const release = await world.occupy();
  const replies: Promise<Reply>[] = [];
  for (const index of [1, 2, 3]) {
    replies.push(world.orders(index));
    await world.settled(index, 1);
  }
  await release();
  const ahead = (await Promise.all(replies)).map(({ headers }) =>
    parseDictionary(headers.get('sluice-admission') ?? '').get('ahead'),
  );
  expect(ahead.map((field) => field?.[0])).toEqual([0, 1, 2]);
});

test('a call that was sent at once has neither', async () => {
  world = await startWorld();
  const reply = await world.orders(1);
  expect(reply.headers.get('sluice-admission')).toMatch(/^waited=\d+, attempts=1, absorbed=0$/);
  expect(await logged(reply)).not.toHaveProperty('heldMs');
});
