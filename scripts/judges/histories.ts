/**
 * Histories of three replicas while Redis is struck: of calls under a ceiling, and of calls that are sent one after the other. Owns the
 * load, and what of it is known when: every operation has the time before which, and the time after which, it cannot have happened.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createKey } from '../../src/cli/keys.ts';
import { pause, type CallResponse } from '../../test/support/redis-fleet.ts';
import { startFleet, yamlOf, type Fleet } from '../fleet/gateways.ts';
import { drive } from '../fleet/load.ts';
import { startUpstream, type Executed } from '../fleet/upstream.ts';

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
  /** The content of `redis:`; left out: each replica is alone. */
  readonly redis?: string;
  readonly strike: () => Promise<void>;
}

/** The window of the ceiling is longer than the whole load, which goes on for some seconds after the ceiling is used up. */
const limit = 90;
const underCeiling = { name: 'open', path: '/via/open/x', calls: 160, waitSeconds: 5 };
/**
 * Twice as fast as the upstream takes them, so that most of them wait; so far apart that few of them can have come in another order, which
 * keeps the lane's history decidable.
 */
const inLane = { name: 'serial', path: '/via/serial/x', calls: 45, everyMs: 200, waitSeconds: 90 };
const workMs = { open: 5, serial: 400 };
const strikeAfterMs = 5_000;
/** What a replica needs, once it is on Redis, to hear of a loss (its beat, 1 s), and to put its sends back before it sends again (1.3 s). */
const restoredAfterMs = 3_000;
const pollMs = 50;
/** A call is read by its replica within this time from its sending, and so long before its upstream notes it. */
const readWithinMs = 50;

const us = (ms: number): number => Math.round(ms * 1_000);

type Visits = ReadonlyMap<string, Executed>;

/** Monotonic milliseconds. */
interface Span {
  readonly from: number;
  readonly to: number;
}

/**
 * Outside `unavailable` a refusal by the ceiling means that it is used up; a call refused for another reason may have had a slot for a while,
 * which it gives back some time later. Meanwhile each replica has a part of its own, and a call that was not sent may have left its slot
 * taken: of a command that was not answered nobody knows whether it ran, and then too few are sent, not too many.
 */
function ofCeiling(responses: readonly CallResponse[], visits: Visits, unavailable: Span): Operation[] {
  const end = us(Math.max(...responses.map(({ sentAt, tookMs }) => sentAt + tookMs)));
  return responses.flatMap(({ nonce, sentAt, tookMs, status, heldBy }, n): readonly Operation[] => {
    const visit = visits.get(nonce);
    const common = { call: nonce, from: us(sentAt), client: 2 * n };
    if (visit !== undefined) return [{ ...common, kind: 'charged', to: us(visit.arrivedAt) }];
    if (status !== 429) return [];
    const to = us(sentAt + tookMs);
    const isUnsure = sentAt + tookMs > unavailable.from && sentAt < unavailable.to;
    if (isUnsure) return [{ ...common, kind: 'unsure', to }];
    if (heldBy === 'ceiling_minute') return [{ ...common, kind: 'refused', to }];
    const returned = { ...common, kind: 'returned', to: Math.max(end, to), client: 2 * n + 1 } as const;
    return [{ ...common, kind: 'tried', to }, returned];
  });
}

/** Calls that came before Redis was struck: whoever comes while replicas are without it has no order between them. */
const ofLane = (
  responses: readonly CallResponse[],
  visits: Visits,
  { before, slackMs }: { readonly before: number; readonly slackMs: number },
): Operation[] =>
  responses.flatMap(({ nonce: call, sentAt }, n): readonly Operation[] => {
    const visit = visits.get(call);
    if (visit === undefined || sentAt > before) return [];
    const from = us(Math.max(sentAt, visit.arrivedAt - slackMs));
    return [
      { kind: 'came', call, from: us(sentAt), to: us(sentAt + slackMs), client: 2 * n },
      { kind: 'left', call, from, to: us(visit.arrivedAt), client: 2 * n + 1 },
    ];
  });

const ofSerial = (responses: readonly CallResponse[], visits: Visits): Operation[] =>
  responses.flatMap(({ nonce: call, sentAt, tookMs }, n): readonly Operation[] => {
    const visit = visits.get(call);
    if (visit === undefined) return [];
    const [ended, to] = [us(visit.endedAt), us(Math.max(sentAt + tookMs, visit.endedAt))];
    return [
      { kind: 'began', call, from: us(sentAt), to: us(visit.arrivedAt), client: 2 * n },
      { kind: 'ended', call, from: ended, to, client: 2 * n + 1 },
    ];
  });

/** Strikes. @returns when the replicas may have been without Redis, or without what it had lost, as looked at until `until` */
async function struck(fleet: Fleet, strike: () => Promise<void>, until: Promise<unknown>): Promise<Span> {
  await pause(strikeAfterMs);
  const from = performance.now();
  let isOver = false;
  void until.then(() => (isOver = true));
  await strike();
  let to = performance.now();
  for (; !isOver; await pause(pollMs)) {
    const modes = await fleet.metrics('sluice_limiter_mode{mode="redis"}');
    if (modes.length === 0 || modes.includes(0)) to = performance.now();
  }
  return { from, to: to + restoredAfterMs };
}

export async function recordHistories({ name, redis, strike }: World): Promise<Recorded> {
  const upstream = await startUpstream(workMs);
  const { key, hash } = createKey();
  const one = (lane: 'open' | 'serial', more: string): string =>
    `${lane}: { origins: ["${upstream.origins[lane]}"], allowPrivateAddresses: true${more} }`;
  const yaml = yamlOf({
    redis,
    upstreams: [one('open', ''), one('serial', ', limits: { maxInFlight: 1 }')],
    workspaces: [`acme: { keys: ["${hash}"], requestsPerMinute: { open: ${limit} } }`],
  });
  const fleet = await startFleet(3, yaml);
  const delay = monitorEventLoopDelay({ resolution: 5 });
  delay.enable();
  const to = { to: fleet.gateways, key, body: () => ({}) };
  // Where every fault has to be found, calls come one by one: all of them are decidable, on a busy machine too.
  const load = drive({ ...underCeiling, ...to, everyMs: redis === undefined ? null : 100 });
  const work = [load, drive({ ...inLane, ...to }), struck(fleet, strike, load)] as const;
  const [ofOpen, ofOne, unavailable] = await Promise.all(work);
  const slackMs = readWithinMs + delay.max / 1e6 + (await fleet.lagMs());
  delay.disable();
  await fleet.stop();
  upstream.stop();
  const visits: Visits = new Map(upstream.executed.map((visit) => [visit.nonce, visit]));
  const bounds = { before: unavailable.from - slackMs, slackMs };
  const common = { limit, name };
  const isTold = ({ status, code }: CallResponse): boolean =>
    [200, 429].includes(status) || code === 'overloaded';
  const lost = [...ofOpen, ...ofOne].filter((response) => !isTold(response));
  return {
    histories: [
      { ...common, model: 'ceiling', operations: ofCeiling(ofOpen, visits, unavailable) },
      { ...common, model: 'lane', operations: ofLane(ofOne, visits, bounds) },
      { ...common, model: 'serial', operations: ofSerial(ofOne, visits) },
    ].map((history) => ({ ...history, name: `${name}, ${history.model}` }) as History),
    lost: lost.map(({ nonce, status, code }) => `${nonce}: ${status} ${code}`),
    twice: upstream.executed.length - visits.size,
  };
}
