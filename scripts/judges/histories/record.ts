/**
 * Histories of three replicas while Redis is struck: of calls under a ceiling, and of calls that are sent one after the other. Owns the
 * load, and what of it is known when: every operation has the time before which, and the time after which, it cannot have happened.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createKey } from '../../../src/cli/keys.ts';
import { pause, type CallResponse } from '../../../test/support/redis-fleet.ts';
import { startFleet, type Fleet } from '../../cluster/fleet.ts';
import { drive } from '../../cluster/load.ts';
import { startUpstream, type Upstream } from './upstream.ts';

export interface Operation {
  readonly kind:
    'charged' | 'refused' | 'unsure' | 'tried' | 'returned' | 'came' | 'left' | 'began' | 'ended';
  readonly call: string;
  /** Monotonic microseconds. */
  readonly from: number;
  readonly to: number;
  readonly client: number;
}

export interface History {
  readonly name: string;
  readonly model: 'ceiling' | 'lane' | 'serial';
  /** Of the ceiling. */
  readonly limit: number;
  readonly operations: readonly Operation[];
}

export interface Recorded {
  readonly histories: readonly History[];
  /** Calls that got neither a response of the upstream nor a refusal, and what they got. */
  readonly lost: readonly string[];
  readonly twice: number;
}

export interface World {
  readonly name: string;
  /** The content of `redis:`; `null`: each replica is alone. */
  readonly redis: string | null;
  readonly strike: () => Promise<void>;
  /** How calls under the ceiling come. Of calls one by one every fault is decidable, on a busy machine too. */
  readonly calls: 'at a steady pace' | 'one by one';
}

/** The window of the ceiling is longer than the whole load, which goes on for some seconds after the ceiling is used up. */
const limit = 90;
const ceiling = {
  name: 'ceiling',
  path: '/via/ceiling/x',
  calls: 160,
  everyMs: 100,
  headers: { prefer: 'wait=5' },
};
/**
 * Twice as fast as the upstream takes them, so that most of them wait; so far apart that few of them can have come in another order, which
 * keeps the lane's history decidable.
 */
const serialized = {
  name: 'serial',
  path: '/via/serial/x',
  calls: 45,
  everyMs: 200,
  headers: { prefer: 'wait=90' },
};
const workMs = 400;
const strikeAfterMs = 5_000;
/** What a replica needs, once it is on Redis, to hear of a loss (its beat, 1 s), and to put its sends back before it sends again (1.3 s). */
const restoredAfterMs = 3_000;
const pollMs = 50;
/** A call is read by its replica within this time from its sending, and so long before its upstream notes it. */
const readWithinMs = 50;

const yamlOf = (redis: string | null, [wide, serial]: readonly Upstream[], hash: string): string =>
  [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    ...(redis === null ? [] : [`redis: { ${redis} }`]),
    'privacy: { labelKey: "a label key of the judges" }',
    'log: { level: info, sampleSuccesses: 0 }',
    'upstreams:',
    `  ceiling: { origins: ["${wide?.origin ?? ''}"], allowPrivateAddresses: true }`,
    `  serial: { origins: ["${serial?.origin ?? ''}"], allowPrivateAddresses: true, limits: { maxInFlight: 1 } }`,
    `workspaces:\n  acme: { keys: ["${hash}"], requestsPerMinute: { ceiling: ${limit} } }`,
  ].join('\n');

const us = (ms: number): number => Math.round(ms * 1_000);

/**
 * Outside `unavailable` a refusal by the ceiling means that it is used up; a call refused for another reason may have had a slot for a while,
 * which it gives back some time later. Meanwhile each replica has a part of its own, and a call that was not sent may have left its slot
 * taken: of a command that was not answered nobody knows whether it ran, and then too few are sent, not too many.
 */
function ofCeiling(
  responses: readonly CallResponse[],
  { visits }: Upstream,
  unavailable: Unavailable,
): readonly Operation[] {
  const end = us(Math.max(...responses.map(({ sentAt, tookMs }) => sentAt + tookMs)));
  return responses.flatMap(({ nonce, sentAt, tookMs, status, heldBy }, n): readonly Operation[] => {
    const visit = visits.get(nonce);
    const common = { call: nonce, from: us(sentAt), client: 2 * n };
    if (visit !== undefined) return [{ ...common, kind: 'charged', to: us(visit.arrivedAt) }];
    if (status !== 429) return [];
    const to = us(sentAt + tookMs);
    if (sentAt + tookMs > unavailable.from && sentAt < unavailable.to)
      return [{ ...common, kind: 'unsure', to }];
    if (heldBy === 'ceiling_minute') return [{ ...common, kind: 'refused', to }];
    return [
      { ...common, kind: 'tried', to },
      { ...common, kind: 'returned', to: Math.max(end, to), client: 2 * n + 1 },
    ];
  });
}

/** Calls that came before Redis was struck: whoever comes while replicas are without it has no order between them. */
function ofLane(
  responses: readonly CallResponse[],
  { visits }: Upstream,
  { before, slackMs }: Bounds,
): readonly Operation[] {
  return responses.flatMap(({ nonce, sentAt }, client): readonly Operation[] => {
    const visit = visits.get(nonce);
    if (visit === undefined || sentAt > before) return [];
    const common = { call: nonce };
    return [
      { ...common, kind: 'came', from: us(sentAt), to: us(sentAt + slackMs), client: 2 * client },
      {
        ...common,
        kind: 'left',
        from: us(Math.max(sentAt, visit.arrivedAt - slackMs)),
        to: us(visit.arrivedAt),
        client: 2 * client + 1,
      },
    ];
  });
}

function ofSerial(responses: readonly CallResponse[], { visits }: Upstream): readonly Operation[] {
  return responses.flatMap(({ nonce, sentAt, tookMs }, client): readonly Operation[] => {
    const visit = visits.get(nonce);
    if (visit === undefined) return [];
    return [
      { kind: 'began', call: nonce, from: us(sentAt), to: us(visit.arrivedAt), client: 2 * client },
      {
        kind: 'ended',
        call: nonce,
        from: us(visit.endedAt),
        to: us(Math.max(sentAt + tookMs, visit.endedAt)),
        client: 2 * client + 1,
      },
    ];
  });
}

/** When the replicas may have been without Redis, or without what it had lost. Monotonic milliseconds. */
interface Unavailable {
  readonly from: number;
  readonly to: number;
}

/** Strikes, and looks at the mode of each replica until all are on Redis at `until`. */
async function struck(
  fleet: Fleet,
  strike: () => Promise<void>,
  until: Promise<unknown>,
): Promise<Unavailable> {
  await pause(strikeAfterMs);
  const from = performance.now();
  let to = from;
  let isOver = false;
  void until.then(() => (isOver = true));
  await strike();
  to = performance.now();
  while (!isOver) {
    const modes = await fleet.metrics('sluice_limiter_mode{mode="redis"}');
    if (modes.length === 0 || modes.some((mode) => mode === 0)) to = performance.now();
    await pause(pollMs);
  }
  return { from, to: to + restoredAfterMs };
}

interface Bounds {
  /** Monotonic milliseconds. */
  readonly before: number;
  readonly slackMs: number;
}

export async function recordHistories({ name, redis, strike, calls }: World): Promise<Recorded> {
  const [wide, serial] = [await startUpstream(5), await startUpstream(workMs)];
  const { key, hash } = createKey();
  const fleet = await startFleet(3, { keys: {}, yaml: () => yamlOf(redis, [wide, serial], hash) });
  const delay = monitorEventLoopDelay({ resolution: 5 });
  delay.enable();
  const to = { to: fleet.gateways, key, body: {} };
  const load = drive({ ...ceiling, ...to, ...(calls === 'one by one' ? { everyMs: null } : {}) });
  const [underCeiling, inLane, unavailable] = await Promise.all([
    load,
    drive({ ...serialized, ...to }),
    struck(fleet, strike, load),
  ]);
  const lags = await fleet.metrics('nodejs_eventloop_lag_max_seconds');
  const slackMs = readWithinMs + delay.max / 1e6 + 1_000 * Math.max(0, ...lags);
  delay.disable();
  await fleet.stop();
  for (const one of [wide, serial]) one.stop();
  const bounds = { before: unavailable.from - slackMs, slackMs };
  const histories: readonly History[] = [
    {
      name: `${name}, ceiling`,
      model: 'ceiling',
      limit,
      operations: ofCeiling(underCeiling, wide, unavailable),
    },
    { name: `${name}, lane`, model: 'lane', limit, operations: ofLane(inLane, serial, bounds) },
    { name: `${name}, serialized`, model: 'serial', limit, operations: ofSerial(inLane, serial) },
  ];
  const lost = [...underCeiling, ...inLane].filter(({ status }) => status !== 200 && status !== 429);
  const words = lost.map(({ nonce, status, code }) => `${nonce}: ${status} ${code}`);
  return { histories, lost: words, twice: wide.twice + serial.twice };
}
