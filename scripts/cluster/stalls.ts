/**
 * How busy the machine is, as measured by a process that does nothing but ask for the time, and by this process, which is the
 * client of the verification. What depends on time is judged only where both run when they want to.
 */
import { cpus } from 'node:os';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { pause } from '../../test/support/redis-fleet.ts';
import { systemClock } from '../../src/clock.ts';
import { child } from './processes.ts';

const everyMs = 100;
const resolutionMs = 5;
const source = `
  const { monitorEventLoopDelay } = require('node:perf_hooks');
  const delay = monitorEventLoopDelay({ resolution: ${resolutionMs} });
  delay.enable();
  setInterval(() => { console.log(Math.max(0, delay.max / 1e6 - ${resolutionMs})); delay.reset(); }, ${everyMs});`;

/** A machine that keeps an idle process from running for longer cannot show times within a few percent. Milliseconds. */
const quietMs = 50;
/**
 * With less of the processors' time left while calls are sent, requests lie unread for longer than the spacing that order is
 * judged by, and nobody knows when they arrived. A share, 0 to 1.
 */
const minIdleShare = 0.05;

interface Sample {
  /** Monotonic milliseconds of the moment at which it was taken. */
  readonly at: number;
  readonly value: number;
}

class Stalls {
  readonly #idleProcess: Sample[] = [];
  readonly #client: Sample[] = [];
  readonly #idleShares: Sample[] = [];
  readonly #own = monitorEventLoopDelay({ resolution: resolutionMs });

  /** Begins to measure, until the end of this process. */
  start(): void {
    this.#own.enable();
    setInterval(() => this.#readClient(), everyMs).unref();
    const { stdout } = child(process.execPath, ['-e', source]);
    if (stdout === null) throw new Error('the idle process has no output');
    createInterface({ input: stdout }).on('line', (line) => this.#idleProcess.push(sampleOf(Number(line))));
  }

  /** The beginning of what is asked for later: monotonic milliseconds. */
  mark(): number {
    return systemClock.monotonic();
  }

  /** Milliseconds for which this process, the client, was kept from running since then, at the longest. */
  clientSince(mark: number): number {
    this.#readClient();
    return maxSince(this.#client, mark);
  }

  /** Milliseconds for which the idle process was kept from running since then, at the longest. */
  maxSince(mark: number): number {
    return maxSince(this.#idleProcess, mark);
  }

  /** Milliseconds for which anything measured here was kept from running since then, at the longest. */
  longestSince(mark: number): number {
    return Math.max(this.maxSince(mark), this.clientSince(mark));
  }

  /**
   * Share of the processors' time in which they had nothing to do, from now on for so many milliseconds, while calls are sent: 0
   * to 1.
   */
  async idleShareOver(ms: number): Promise<number> {
    const before = processorTimes();
    await pause(ms);
    const after = processorTimes();
    const share = (after.idle - before.idle) / (after.all - before.all);
    this.#idleShares.push(sampleOf(share));
    return share;
  }

  /** Why a row that began then says nothing of times and order, in words; `null` = the machine let everybody run. */
  excuseSince(mark: number): string | null {
    const stalledMs = this.longestSince(mark);
    if (stalledMs > quietMs) return `the machine stalled for ${stalledMs.toFixed(0)} ms`;
    const isSaturated = this.#idleShares.some(({ at, value }) => at >= mark && value < minIdleShare);
    return isSaturated ? 'the processors were saturated while calls were sent' : null;
  }

  #readClient(): void {
    this.#client.push(sampleOf(Math.max(0, this.#own.max / 1e6 - resolutionMs)));
    this.#own.reset();
  }
}

const sampleOf = (value: number): Sample => ({ at: systemClock.monotonic(), value });

function maxSince(samples: readonly Sample[], mark: number): number {
  let max = 0;
  for (const { at, value } of samples) if (at >= mark) max = Math.max(max, value);
  return max;
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
