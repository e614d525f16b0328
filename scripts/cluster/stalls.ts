/**
 * How busy the machine is, as measured by a process that does nothing but ask for the time, and by this process: figures that
 * depend on time are judged only where they run when they want to. Owns that process.
 */
import { readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { pause } from '../../test/support/redis-fleet.ts';
import { createInterface } from 'node:readline';
import { systemClock } from '../../src/clock.ts';
import { child } from './processes.ts';

const every = 100;
const source = `
  const { monitorEventLoopDelay } = require('node:perf_hooks');
  const delay = monitorEventLoopDelay({ resolution: 5 });
  delay.enable();
  setInterval(() => { console.log(Math.max(0, delay.max / 1e6 - 5)); delay.reset(); }, ${every});`;

class Stalls {
  readonly #seen: { readonly at: number; readonly ms: number }[] = [];

  readonly #own = monitorEventLoopDelay({ resolution: 5 });

  start(): void {
    this.#own.enable();
    const { stdout } = child(process.execPath, ['-e', source]);
    if (stdout === null) throw new Error('the idle process has no output');
    createInterface({ input: stdout }).on('line', (line) => {
      this.#seen.push({ at: systemClock.monotonic(), ms: Number(line) });
    });
  }

  mark(): number {
    this.#own.reset();
    return systemClock.monotonic();
  }

  /** Milliseconds for which this process, the client, was kept from running since the latest mark. */
  ownSinceMark(): number {
    return Math.max(0, this.#own.max / 1e6 - 5);
  }

  /** Milliseconds for which the idle process was kept from running, at the longest. */
  maxSince(mark: number): number {
    return Math.max(0, ...this.#seen.filter(({ at }) => at >= mark).map(({ ms }) => ms));
  }
}

export const stalls = new Stalls();

/** Milliseconds of all processors since the system started. */
function processorTimes(): { readonly idle: number; readonly all: number } {
  const times = cpus().map(({ times: { idle, user, nice, sys, irq } }) => ({
    idle,
    all: idle + user + nice + sys + irq,
  }));
  return times.reduce((sum, { idle, all }) => ({ idle: sum.idle + idle, all: sum.all + all }));
}

/** How often this process' control group used up its quota of processor time: version 2, then 1; 0 = it has none. */
function quotaUsedUp(): number {
  const groups = textOf('/proc/self/cgroup');
  const [own = '', ownInVersion1 = ''] = [/^0::(.*)$/m, /:cpu(?:,\w+)?:(.*)$/m].map(
    (line) => line.exec(groups)?.[1],
  );
  const root = '/sys/fs/cgroup';
  // Within a container its own group is the root.
  const files = [
    `${root}${own}/cpu.stat`,
    `${root}/cpu.stat`,
    `${root}/cpu${ownInVersion1}/cpu.stat`,
    `${root}/cpu/cpu.stat`,
  ];
  for (const file of files) {
    const times = /^nr_throttled (\d+)$/m.exec(textOf(file))?.[1];
    if (times !== undefined) return Number(times);
  }
  return 0;
}

/** Not every system has such files. */
function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

/**
 * Share of the processors' time in which they had nothing to do, from now on for so many milliseconds: 0 to 1. 0 where a quota
 * of processor time was used up meanwhile, whatever others left.
 */
export async function idleShareOver(ms: number): Promise<number> {
  const [before, usedUpBefore] = [processorTimes(), quotaUsedUp()];
  await pause(ms);
  const after = processorTimes();
  if (quotaUsedUp() > usedUpBefore) return 0;
  return (after.idle - before.idle) / (after.all - before.all);
}
