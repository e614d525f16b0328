/** A position that one replica keeps is good at the others, also when that one is killed. */
import { expect, test } from '@jest/globals';
import { clean, serve } from '../cli/started.ts';
import { pause } from '../support/redis-fleet.ts';
import { onRedis, read, type Reply } from './fleet.ts';

const { open, fleet, upstream } = onRedis();

test('a ticket of a replica that was killed is good at another one, before calls that came later and waited', async () => {
  const arrivals: string[] = [];
  const { url } = await upstream((response, request) => {
    arrivals.push((request.url ?? '').slice(1));
    response.end('served');
  });
  // Four calls at once, then one every two seconds.
  const speaks = { windows: [{ requests: 4, seconds: 8, kind: 'leaky' }] };
  const all = await fleet({ upstreams: { api: { origins: [url], speaks, reserveSeconds: 60 } } });
  const call = (replica: number, name: string, headers: Record<string, string>): Promise<Reply> =>
    all.call(replica, `api/${name}`, { headers });
  // A third replica is a process of its own.
  const killed = await serve(all.text());
  open.push(clean);
  const first = await Promise.all([0, 1, 2, 3].map((n) => call(0, `first${n}`, { prefer: 'wait=30' })));
  expect(first.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
  const asked = { 'sluice-key': all.keys['acme'] ?? '', prefer: 'reserve, wait=0' };
  const given = await read(await fetch(`${killed.url}/via/api/refused`, { headers: asked }));
  const ticket = given.headers.get('sluice-ticket') ?? '';
  expect([given.status, ticket]).toEqual([429, expect.stringMatching(/./)]);
  const x = call(0, 'x', { prefer: 'wait=120' });
  killed.signal('SIGKILL');
  await killed.ended;
  await pause(Number(given.headers.get('retry-after-ms')));
  const back = await call(1, 'back', { prefer: 'wait=30', 'sluice-ticket': ticket });
  expect([back.status, (await x).status]).toEqual([200, 200]);
  expect(arrivals.slice(4)).toEqual(['back', 'x']);
});
