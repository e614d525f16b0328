/**
 * How long this process, the client of verifications, and one that does nothing but ask for the time were kept from running. What depends
 * on time is judged only where both run when they want to.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { systemClock } from '../../src/clock.ts';
import { start } from './processes.ts';

const everyMs = 100;
const resolutionMs = 5;
const idle = `
  const { monitorEventLoopDelay } = require('node:perf_hooks');
  const delay = monitorEventLoopDelay({ resolution: ${resolutionMs} });
  delay.enable();
  setInterval(() => { console.log(Math.max(0, delay.max / 1e6 - ${resolutionMs})); delay.reset(); }, ${everyMs});`;

/** A machine that keeps an idle process from running for longer cannot show times within a few percent. Milliseconds. */
const quietMs = 50;

class Stalls {
  /** When each was noticed, monotonic, and how long it was. Milliseconds. */
  readonly #seen: { readonly at: number; readonly ms: number }[] = [];
  readonly #own = monitorEventLoopDelay({ resolution: resolutionMs });
  #read: () => void = () => {};

  /** Begins to measure, until the end of this process. */
  start(): void {
    this.#own.enable();
    const { lines } = start(process.execPath, ['-e', idle]);
    let taken = 0;
    this.#read = () => {
      const at = systemClock.monotonic();
      const ms = Math.max(0, this.#own.max / 1e6 - resolutionMs, ...lines.slice(taken).map(Number));
      taken = lines.length;
      this.#own.reset();
      this.#seen.push({ at, ms });
    };
    setInterval(() => this.#read(), everyMs).unref();
  }

  /** The beginning of what is asked for later: monotonic milliseconds. */
  mark(): number {
    this.#read();
    return systemClock.monotonic();
  }

  /** The longest since then. Milliseconds. */
  longestSince(mark: number): number {
    this.#read();
    return this.#seen.reduce((max, { at, ms }) => (at >= mark ? Math.max(max, ms) : max), 0);
  }

  /** Why a row that began then says nothing of times and order, in words; `null` = the machine let everybody run. */
  excuseSince(mark: number): string | null {
    const stalledMs = this.longestSince(mark);
    return stalledMs > quietMs ? `the machine stalled for ${stalledMs.toFixed(0)} ms` : null;
  }
}

export const stalls = new Stalls();
