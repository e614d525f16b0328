/** A log in a Redis Cluster: its keys are on one node, and its messages and subscribers on any. */
import { afterAll, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { until } from '../support/until.ts';
import { agree, keys } from './replicas.ts';
import { goOn, installation, operator, server, talk } from './world.ts';

/** The driver leaves the timer of its last refresh of the slots running. */
const slotsTimerMs = 2_000;
afterAll(() => new Promise<void>((resolve) => void systemClock.after(slotsTimerMs, resolve)));

/** A node that has these slots. The bus port is 10,000 above the port, so the port has to be low enough. */
async function startNode(from: number, to: number) {
  for (;;) {
    const { port } = await server(undefined, ['--cluster-enabled', 'yes']);
    if (port >= 55_000) continue;
    const control = operator({ port });
    await control.call('CLUSTER', 'ADDSLOTSRANGE', from, to);
    return { port, control };
  }
}

test('replicas agree, newcomers join from a snapshot, and FLUSHALL loses nothing', async () => {
  const first = await startNode(0, 8_000);
  const second = await startNode(8_001, 16_383);
  await first.control.call('CLUSTER', 'MEET', '127.0.0.1', second.port);
  for (const { control } of [first, second])
    await until(async () => /cluster_state:ok/.test(String(await control.call('CLUSTER', 'INFO'))));

  const { replicas, add } = installation(first, { mode: 'cluster', maxLogBytes: 2_000 });
  for (let count = 0; count < 3; count += 1) await add();
  await until(() => replicas.every(({ isJoined }) => isJoined));
  const stop = talk(replicas);
  const [holder] = await Promise.all(
    [first, second].map(async (node) =>
      (await node.control.exists(keys.head).catch(() => 0)) === 1 ? node : null,
    ),
  );
  const { control } = holder ?? second;
  await until(async () => Number(await control.hget(keys.head, 'saved')) > 0);
  await add();
  await goOn(replicas);
  stop();
  await agree(replicas);
  await control.flushall();
  const newcomer = await add();
  await until(() => newcomer.isJoined);
  // The others began it, not the newcomer.
  expect(Number(await control.hget(keys.head, 'began'))).toBeGreaterThan(0);
  await agree(replicas);
  for (const { bugs } of replicas) expect(bugs).toEqual([]);
});
