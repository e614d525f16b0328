/**
 * Hundreds of refused calls that come back at the times that they were told, with no connection meanwhile: all of them, at one replica and over
 * three; of which three in ten never come; and while Redis loses its data.
 */
import { Agent } from 'node:http';
import type { LogEntry } from '../../simulators/log.ts';
import {
  chatBody,
  chatPath,
  count,
  fleetConfig,
  pause,
  send,
  type CallResponse,
} from '../../test/support/redis-fleet.ts';
import { crowdOf, now } from './crowd.ts';
import { startFleet, type Fleet } from './fleet.ts';
import { drive, twice } from './load.ts';
import { cli, startServer, startSimulator, stopServer } from './processes.ts';
import { makespanOf, ratio, seconds, summary, type Row, type Scenario } from './row.ts';

const perMinute = 120;
const slotMs = 60_000 / perMinute;
/** Clients come back so much sooner or later than they were told, at most. Milliseconds. */
const unpunctualMs = 200;
/** Clients whose first attempts are under way at a time. */
const firstAtOnce = 4;
const maxOpen = 5;
const atBest = 1.02;
const minUtilisation = 0.95;

interface Plan {
  readonly name: string;
  readonly replicas: number;
  readonly clients: number;
  /** Of each ten clients so many never come back. */
  readonly lostOfTen: number;
  /** Calls of another workspace that wait all the time. */
  readonly crowd: number;
  /** Redis is emptied when half of the clients have come back. */
  readonly isEmptied: boolean;
}

/** What became of one client. */
interface Client {
  readonly nonce: string;
  /** What it was told first, monotonic milliseconds; `null` = it was served at once. */
  readonly toldAt: number | null;
  readonly isLost: boolean;
  readonly last: CallResponse;
  /** Refusals after the first. */
  readonly refusedAgain: number;
  /** Refusals of a ticket in time that did not give the same ticket back. */
  readonly void: number;
}

class Clients {
  readonly #fleet: Fleet;
  readonly #plan: Plan;
  /** No connection is open while nobody asks. */
  readonly #agent = new Agent({ keepAlive: false });
  #sent = 0;
  #open = 0;
  maxOpen = 0;

  constructor(fleet: Fleet, plan: Plan) {
    this.#fleet = fleet;
    this.#plan = plan;
  }

  /** @param onBack is told of each client that has come back, before it sends */
  async run(onBack: () => void): Promise<readonly Client[]> {
    const clients: Promise<Client>[] = [];
    let next = 0;
    const worker = async (): Promise<void> => {
      while (next < this.#plan.clients) {
        const n = (next += 1);
        const nonce = `client-${n}`;
        const first = await this.#attempt(nonce, 'reserve, wait=0', null);
        clients.push(this.#goOn(nonce, n, { first, onBack }));
      }
    };
    await Promise.all(Array.from({ length: firstAtOnce }, worker));
    const ended = await Promise.all(clients);
    this.#agent.destroy();
    return ended;
  }

  async #goOn(
    nonce: string,
    n: number,
    { first, onBack }: { readonly first: CallResponse; readonly onBack: () => void },
  ): Promise<Client> {
    const isLost = n % 10 < this.#plan.lostOfTen;
    const told = (response: CallResponse): number | null =>
      response.retryAfterMs === null ? null : response.sentAt + response.tookMs + response.retryAfterMs;
    const toldAt = told(first);
    let last = first;
    let refusedAgain = 0;
    let isVoid = 0;
    for (let at = isLost ? null : toldAt; at !== null && last.status === 429; at = told(last)) {
      await pause(Math.max(0, at + (2 * Math.random() - 1) * unpunctualMs - now()));
      if (refusedAgain === 0) onBack();
      const { ticket } = last;
      last = await this.#attempt(nonce, 'reserve, wait=1', ticket);
      if (last.status !== 429) continue;
      refusedAgain += 1;
      if (last.ticket !== ticket) isVoid += 1;
    }
    return { nonce, toldAt, isLost, last, refusedAgain, void: isVoid };
  }

  async #attempt(nonce: string, prefer: string, ticket: string | null): Promise<CallResponse> {
    const { gateways, keys } = this.#fleet;
    const url = gateways[(this.#sent += 1) % gateways.length]?.url ?? '';
    const headers = { prefer, ...(ticket === null ? {} : { 'sluice-ticket': ticket }) };
    this.#open += 1;
    this.maxOpen = Math.max(this.maxOpen, this.#open);
    try {
      const key = keys['acme'] ?? '';
      return await send({ url, path: chatPath, key, nonce, agent: this.#agent, body: chatBody, headers });
    } finally {
      this.#open -= 1;
    }
  }
}

const scenario = (plan: Plan): Scenario => ({
  name: plan.name,
  async run(): Promise<Row> {
    const redis = plan.replicas === 1 ? null : await startServer();
    const simulator = await startSimulator('language-model', {
      models: { 'gpt-4o': { rpm: perMinute, tpm: 100_000_000 } },
      latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
    });
    const config = fleetConfig({
      ...(redis === null ? {} : { redis: `url: "${redis.url}"` }),
      modelUrl: simulator.url,
      modelLimits: `requestsPerMinute: ${perMinute}, requestsPerDay: 10000000, tokensPerMinute: 100000000`,
      workspaces: ['acme', 'other'],
      // The slots of a ceiling that was used up at once come free at once, a minute later.
      workspace: '    requestsPerMinute: { openai: none }',
    });
    const fleet = await startFleet(plan.replicas, config);
    const filling = { calls: perMinute, everyMs: 5, path: chatPath, body: chatBody, name: 'before' };
    await drive({ ...filling, to: fleet.gateways, key: fleet.keys['acme'] ?? '' });
    const other = { path: chatPath, key: fleet.keys['other'] ?? '', name: 'other', body: chatBody };
    const crowd = crowdOf(fleet, { ...other, headers: { prefer: 'wait=600' } }, plan.crowd);
    const clients = new Clients(fleet, plan);
    const beganAt = Date.now();
    let back = 0;
    const ended = await clients.run(() => {
      back += 1;
      const isHalf = back === Math.floor(plan.clients / 2);
      if (isHalf && plan.isEmptied && redis !== null) void cli(redis.port, 'flushall');
    });
    const endedAt = Date.now();
    crowd.leave();
    const entries = await simulator.log();
    await fleet.stop();
    simulator.stop();
    if (redis !== null) await stopServer(redis);
    return judged(plan, { ended, entries, maxOpen: clients.maxOpen, beganAt, endedAt });
  },
});

interface Outcome {
  readonly ended: readonly Client[];
  readonly entries: readonly LogEntry[];
  readonly maxOpen: number;
  /** Wall clock, milliseconds. */
  readonly beganAt: number;
  readonly endedAt: number;
}

function judged(plan: Plan, { ended, entries, maxOpen: open, beganAt, endedAt }: Outcome): Row {
  const expected = ended.filter(({ isLost }) => !isLost);
  const served = expected.filter(({ last }) => last.status === 200).length;
  const doubled = twice(entries);
  const refusedAgain = expected.reduce((sum, each) => sum + each.refusedAgain, 0);
  const isVoid = expected.reduce((sum, each) => sum + each.void, 0);
  const throttled = count(entries, 'throttled');
  const outOfOrder = inversions(expected, entries);
  const inTime = entries.filter(({ decision, at }) => decision === 'admitted' && at >= beganAt);
  const lastAt = Math.max(...inTime.filter(({ nonce }) => nonce.startsWith('client-')).map(({ at }) => at));
  const [tookMs, bestMs] = [lastAt - beganAt, plan.clients * slotMs];
  const [from, until] = [beganAt + 20_000, endedAt - 5_000];
  const used = inTime.filter(({ at }) => at >= from && at < until).length / ((until - from) / slotMs);
  const isWhole = plan.lostOfTen === 0 && !plan.isEmptied;
  const words = [
    `${served} of ${expected.length} that came back served, ${doubled} twice`,
    summary(expected.map(({ last }) => last)),
    `refused a second time ${refusedAgain}, with another ticket ${isVoid}`,
    `out of the order of their told times ${outOfOrder}`,
    `${open} calls open at most`,
    ...(plan.crowd > 0 ? [`utilisation ${used.toFixed(3)}`] : [`makespan ${ratio(tookMs, bestMs)}`]),
    `upstream 429s ${throttled}`,
    `took ${seconds(endedAt - beganAt)}`,
  ];
  return {
    holds: doubled === 0 && expected.every(({ last }) => last.status !== 0),
    holdsWhenQuiet:
      served === expected.length &&
      throttled === 0 &&
      (plan.isEmptied || (refusedAgain === 0 && outOfOrder === 0)) &&
      (plan.isEmptied || open <= maxOpen) &&
      (plan.crowd === 0 || used >= minUtilisation) &&
      (!isWhole || tookMs <= bestMs * atBest),
    figures: words.join('; '),
    measured: isWhole ? [makespanOf(tookMs, bestMs)] : [],
  };
}

/** Clients that left after one that had been told a later time. */
function inversions(clients: readonly Client[], entries: readonly LogEntry[]): number {
  const arrivals = new Map(entries.map(({ nonce, arrivedT }) => [nonce, arrivedT]));
  const inOrder = clients
    .flatMap(({ nonce, toldAt }) => (toldAt === null ? [] : [{ toldAt, leftAt: arrivals.get(nonce) ?? 0 }]))
    .toSorted((one, other) => one.toldAt - other.toldAt);
  return inOrder.filter(({ leftAt }, n) => leftAt < (inOrder[n - 1]?.leftAt ?? 0)).length;
}

const whole = { clients: 500, lostOfTen: 0, crowd: 0, isEmptied: false };

export const reservations: readonly Scenario[] = [
  { ...whole, name: `${whole.clients} reservations at ${perMinute}/min, one replica`, replicas: 1 },
  { ...whole, name: `${whole.clients} reservations at ${perMinute}/min, three replicas`, replicas: 3 },
  {
    name: `${whole.clients} reservations at ${perMinute}/min, 30 % of which never come back, beside 40 waiting calls, three replicas`,
    ...whole,
    replicas: 3,
    lostOfTen: 3,
    crowd: 40,
  },
  {
    name: `200 reservations at ${perMinute}/min, Redis emptied in the middle, three replicas`,
    ...whole,
    clients: 200,
    replicas: 3,
    isEmptied: true,
  },
].map(scenario);
