/**
 * What a held call costs: memory and CPU of the gateway's process while 2,000 and then 10,000 calls wait, and memory of a
 * plain Express application that holds as many requests. `npm run bench:held`.
 *
 * CPU comes from the scheduler's own count (`/proc/<pid>/task/<tid>/schedstat`), threads of the collector included.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { record } from '../scripts/nightly/figures.ts';
import { cpuMs, nodeFlags } from './gateway.ts';
import { startGatewayHolder, startPlainHolder, type Holder, type Memory } from './holding.ts';

const steps = [2_000, 10_000];
/** Code is compiled and pools are filled before the first look. */
const warmUp = 300;
const idleMs = 10_000;

const kib = (bytes: number): string => (bytes / 1024).toFixed(1).padStart(6);

/** @param isProduct figures are recorded of Sluice, not of what it is compared with */
async function measure(
  name: string,
  { pid, held, holdUntil, memory, end }: Holder,
  isProduct = false,
): Promise<void> {
  try {
    await holdUntil(warmUp);
    await pause(2_000);
    const none = await memory();
    const from = held();
    console.log(`${name}, with ${from} held: RSS ${kib(none.rssAfter)} KiB`);
    for (const step of steps) {
      const heldBefore = held();
      const cpuBefore = cpuMs(pid);
      await holdUntil(step);
      const acceptMs = cpuMs(pid) - cpuBefore;
      const idleFrom = cpuMs(pid);
      await pause(idleMs);
      const idlePercent = ((cpuMs(pid) - idleFrom) / idleMs) * 100;
      const now = await memory();
      const each = (read: (memory: Memory) => number): string =>
        kib((read(now) - read(none)) / (step - from));
      console.log(
        `${String(step).padStart(6)} held: each RSS ${each(({ rss }) => rss)} KiB, ` +
          `${each(({ rssAfter }) => rssAfter)} after a collection, heap ${each(({ heapUsed }) => heapUsed)}, ` +
          `buffers ${each(({ external }) => external)}; ` +
          `${((acceptMs * 1000) / (step - heldBefore)).toFixed(0)} µs CPU to take one in; ` +
          `${idlePercent.toFixed(1)} % of a core while held`,
      );
      if (isProduct)
        record(
          {
            name: `memory of a call, ${step} held`,
            value: (now.rssAfter - none.rssAfter) / (step - from) / 1024,
            unit: 'KiB',
          },
          {
            name: `CPU to take a call in, ${step} held`,
            value: (acceptMs * 1000) / (step - heldBefore),
            unit: 'µs',
          },
          { name: `CPU while ${step} are held`, value: idlePercent, unit: '% of a core' },
        );
    }
  } finally {
    await end();
  }
}

console.log(`Node ${process.versions.node}`);
await measure(`Sluice, node ${nodeFlags.join(' ')}`, await startGatewayHolder(nodeFlags), true);
await measure('plain Express, node', await startPlainHolder([]));
await measure(`plain Express, node ${nodeFlags.join(' ')}`, await startPlainHolder(nodeFlags));
