/**
 * What both simulators are from outside, and what stands around their responses: log, faults, steering, sockets.
 *
 * Owns: the interface, the options that hold for a simulator's life, the way of a request to the API or to `/__sim/`.
 * Does not own: what a call is answered and which buckets there are (`language-model.ts`, `commerce.ts`).
 */
import type { IncomingHttpHeaders } from 'node:http';
import { systemClock, type Clock } from './clock.ts';
import type { Bucket } from './bucket.ts';
import { createControl, controlPrefix } from './control.ts';
import type { Exchange } from './exchange.ts';
import type { Fault, FaultQueue } from './faults.ts';
import { numberOf, type Json } from './json.ts';
import type { LogEntry } from './log.ts';
import type { ArrivalNote, Recorder } from './recorder.ts';
import { Host, type Handler, type Listening } from './server.ts';

export interface Simulator<Settings, BucketChoice> {
  /** Loopback; port 0 takes a free one. @throws the listen error. */
  listen(port?: number): Promise<Listening>;
  readonly log: readonly LogEntry[];
  state(): SimulatorState;
  /** Empties buckets, log, faults, resources; settings go back to the options of the start. */
  reset(): void;
  /** Changes settings from the next call on; levels stay. What has names (models, organisations, stores) is merged by name. */
  configure(options: Partial<Settings>): void;
  /** @throws Error on an unknown kind. */
  fault(fault: Fault): void;
  /** An outside consumer takes `units` now, never beyond the limit. @throws Error when no such bucket is limited. */
  consume(units: number, which?: BucketChoice): void;
  /** Nobody finds room for `forMs` from now on. @throws Error as `consume`, and for a bucket that counts periods. */
  closeFor(forMs: number, which?: BucketChoice): void;
  /** Closes every socket; resolves when none is left. */
  close(): Promise<void>;
}

export interface SimulatorState {
  readonly buckets: Readonly<Record<string, { readonly limit: number; readonly used: number }>>;
  readonly decisions: number;
  readonly faults: readonly Fault[];
  /** Errors of the simulator itself; must stay empty. */
  readonly failures: readonly string[];
}

/** Options that `configure` cannot change. */
export interface FixedOptions {
  readonly clock?: Clock;
  /** Default 1. */
  readonly seed?: number;
  /** Entries the log keeps; default 200,000. */
  readonly logLimit?: number;
  /** Keep each request's fields in the log. */
  readonly recordHeaders?: boolean;
}

/** Splits the options into what is fixed for the simulator's life and what `configure` may change. */
export function settle<Settings>(
  options: FixedOptions & Partial<Settings>,
  defaults: Settings,
): { settings: Settings; fixed: Required<FixedOptions> } {
  const { clock = systemClock, seed = 1, logLimit = 200_000, recordHeaders = false, ...rest } = options;
  return { settings: { ...defaults, ...rest }, fixed: { clock, seed, logLimit, recordHeaders } };
}

/** One API: who calls, what is answered, what is limited. */
export interface Api<Settings, BucketChoice> extends Pick<
  Simulator<Settings, BucketChoice>,
  'reset' | 'configure'
> {
  readonly clock: Clock;
  readonly recorder: Recorder;
  readonly faults: FaultQueue;
  /** The credential as sent; empty when there is none. */
  keyOf(headers: IncomingHttpHeaders): string;
  respond(exchange: Exchange, note: ArrivalNote): Promise<void>;
  /** All buckets that exist, at this monotonic time. */
  buckets(now: number): SimulatorState['buckets'];
  /** The bucket that somebody else takes from or closes. @throws Error when no such bucket is limited. */
  bucketOf(which: BucketChoice, now: number): Bucket;
  /** Untyped data of `POST /__sim/config` → which bucket. */
  choiceOf(part: Json): BucketChoice;
}

export function createSimulator<Settings, BucketChoice>(
  api: Api<Settings, BucketChoice>,
): Simulator<Settings, BucketChoice> {
  const { clock, recorder, faults } = api;
  const simulator: Simulator<Settings, BucketChoice> = {
    listen: async (port = 0) => await host.listen(port),
    close: async () => await host.close(),
    get log() {
      return recorder.log.entries;
    },
    state: () => ({
      buckets: api.buckets(clock.monotonic()),
      decisions: recorder.log.entries.length,
      faults: faults.waiting,
      failures: recorder.failures,
    }),
    reset() {
      recorder.clear();
      faults.clear();
      api.reset();
    },
    configure: (options) => api.configure(options),
    fault: (fault) => faults.add(fault),
    consume(units, which) {
      const now = clock.monotonic();
      api.bucketOf(which ?? api.choiceOf({}), now).takeUpTo(units, now);
    },
    closeFor(forMs, which) {
      const now = clock.monotonic();
      api.bucketOf(which ?? api.choiceOf({}), now).closeFor(forMs, now);
    },
  };
  const control = createControl({
    state: () => simulator.state(),
    entries: () => simulator.log,
    reset: () => simulator.reset(),
    // Untyped data enters here, from tests only.
    configure: (part) => simulator.configure(part as Partial<Settings>),
    consume: (part) => simulator.consume(numberOf(part['units']) ?? 0, api.choiceOf(part)),
    close: (part) => simulator.closeFor(numberOf(part['forMs']) ?? 0, api.choiceOf(part)),
    fault: (fault) => simulator.fault(fault),
    faults: () => faults.waiting,
    clearFaults: () => faults.clear(),
  });
  const calls: Handler = {
    arrive: (arrival) => recorder.arrive(arrival, api.keyOf(arrival.request.headers)),
    handle: async (exchange, note) => await api.respond(exchange, note as ArrivalNote),
    failed: (error) => recorder.failed(error),
  };
  const host = new Host(clock, (path) => (path.startsWith(controlPrefix) ? control : calls));
  return simulator;
}
