/** What a reload and a restart change for calls that wait and calls that come; `changing-limits.ts` has the limits. */
import { systemClock } from '../../src/clock.ts';
import { chatBody, pause, send, type CallResponse } from '../../test/support/redis-fleet.ts';
import { configurations, states, upstreamOf } from './changing-limits.ts';
import type { Fleet } from './fleet.ts';
import { startSimulator, until } from './processes.ts';
import { succeeded, summary, type Row, type Scenario } from './row.ts';
import { run, setups, type Running, type Setup } from './setups.ts';
import { wait } from './worlds.ts';

/** A change holds within this time after the file was written. Milliseconds. */
const limitMs = 1_000;
/** Nobody looks for longer whether it holds. Milliseconds. */
const lookingMs = 5_000;
/** Who waits for a ceiling of three per minute waits for its third window at most. */
const patience = wait(200);

interface Finding {
  readonly holds: boolean;
  /** What holds did so in time, where that is promised. */
  readonly isInTime?: boolean;
  readonly words: string;
}

/** Calls of the workspaces, each one to the next replica. */
class Callers {
  readonly #fleet: () => Fleet;
  #sendings = 0;

  constructor(fleet: () => Fleet) {
    this.#fleet = fleet;
  }

  get replicas(): number {
    return this.#fleet().gateways.length;
  }

  call(workspace: string, headers: Readonly<Record<string, string>> = wait(1)): Promise<CallResponse> {
    const { gateways, keys } = this.#fleet();
    this.#sendings += 1;
    return send({
      url: gateways[this.#sendings % gateways.length]?.url ?? '',
      path: `/via/${upstreamOf(workspace)}/v1/chat/completions`,
      key: keys[workspace] ?? '',
      nonce: `${workspace}-${this.#sendings}`,
      body: chatBody,
      headers,
    });
  }

  async oneByOne(workspace: string, calls: number): Promise<readonly CallResponse[]> {
    const responses: CallResponse[] = [];
    for (let n = 0; n < calls; n += 1) responses.push(await this.call(workspace));
    return responses;
  }
}

/** The day is spent, and every refusal says so, the second like the first. */
async function spent(callers: Callers, workspace: string): Promise<Finding> {
  const responses = await callers.oneByOne(workspace, 4);
  const [, , ...refused] = responses;
  const saysSo = ({ code, heldBy }: CallResponse): boolean =>
    code === 'day_quota_exhausted' && (heldBy === 'ceiling_day' || heldBy === 'upstream_day');
  return {
    holds: succeeded(responses) === 2 && refused.every(saysSo),
    words: `${workspace}, two of four: ${summary(responses)}, held by ${refused.map(({ heldBy }) => (heldBy === '' ? 'nobody says' : heldBy)).join(' and ')}`,
  };
}

/** Each replica serves the workspace again within the time that a change may take. */
async function served(callers: Callers, workspace: string, sinceMs: number): Promise<Finding> {
  const each = Array.from({ length: callers.replicas }, async () => {
    let response = await callers.call(workspace);
    while (response.status !== 200 && systemClock.monotonic() < sinceMs + lookingMs) {
      await pause(50);
      response = await callers.call(workspace);
    }
    return response;
  });
  return within(workspace, await Promise.all(each), sinceMs);
}

function within(workspace: string, responses: readonly CallResponse[], sinceMs: number): Finding {
  const lastMs = Math.max(...responses.map(({ sentAt, tookMs }) => sentAt + tookMs)) - sinceMs;
  const all = responses.every(({ status }) => status === 200);
  return {
    holds: all,
    isInTime: lastMs <= limitMs,
    words: `${workspace}: ${all ? `served after ${lastMs.toFixed(0)} ms` : summary(responses)}`,
  };
}

/** Calls under a ceiling: `allowed` have been answered, the others wait. */
class Line {
  readonly #workspace: string;
  readonly #calls: readonly Promise<CallResponse>[];
  readonly #answered: CallResponse[] = [];

  constructor(callers: Callers, workspace: string, calls: number) {
    this.#workspace = workspace;
    this.#calls = Array.from({ length: calls }, async () => {
      const response = await callers.call(workspace, patience);
      this.#answered.push(response);
      return response;
    });
  }

  /** So many are served and the others are not, for as long as a change may take. */
  async holdsBack(allowed: number): Promise<Finding> {
    await until(() => Promise.resolve(this.#answered.length >= allowed), lookingMs);
    await pause(limitMs + 500);
    return {
      holds: this.#answered.length === allowed && this.#answered.every(({ status }) => status === 200),
      words: `${this.#workspace}: ${summary(this.#answered)} of ${this.#calls.length} answered under the lower limit`,
    };
  }

  /** Those that waited are served within the time that a change may take. */
  async released(sinceMs: number): Promise<Finding> {
    await until(() => Promise.resolve(this.#answered.length === this.#calls.length), lookingMs);
    const missing = this.#calls.length - this.#answered.length;
    if (missing === 0) return within(this.#workspace, this.#answered, sinceMs);
    return { holds: false, words: `${this.#workspace}: ${missing} still wait after ${lookingMs / 1_000} s` };
  }
}

const days = ['day-raised', 'upstream-day-raised', 'upstream-day-removed'];
const minutes = ['minute-raised', 'minute-removed', 'upstream-minute-removed'];
const atRestart = 'day-raised-by-restart';
const continued = 'day-continued';
const lowered = 'minute-lowered';

interface World {
  readonly running: Running;
  readonly callers: Callers;
  readonly configure: ReturnType<typeof configurations>;
}

/** Days spent, lines before ceilings of a minute; then all of it raised or removed at once. */
async function raising({ running, callers, configure }: World): Promise<readonly Finding[]> {
  const spentDays = await Promise.all([...days, atRestart].map((workspace) => spent(callers, workspace)));
  await callers.oneByOne(continued, 2);
  const lines = minutes.map((workspace) => new Line(callers, workspace, 8));
  const held = await Promise.all(lines.map((line) => line.holdsBack(3)));
  const sinceMs = await running.reload(configure(states.after));
  const changed = await Promise.all([
    ...lines.map((line) => line.released(sinceMs)),
    ...days.map((workspace) => served(callers, workspace, sinceMs)),
  ]);
  const more = succeeded(await callers.oneByOne(continued, 5));
  const words = `${continued}: two of three used, raised to five: ${more} more`;
  return [...spentDays, ...held, ...changed, { holds: more === 3, words }];
}

/** Twelve instead of thirty per minute, of which ten are used (before the reload of {@link raising}); then thirty again. */
async function lowering({ running, callers, configure }: World): Promise<readonly Finding[]> {
  const line = new Line(callers, lowered, 6);
  const held = await line.holdsBack(2);
  const sinceMs = await running.reload(configure(states.raisedAgain));
  return [held, await line.released(sinceMs)];
}

/** A day that was spent, and that a restart over the same Redis raises. */
async function restarting({ running, callers, configure }: World): Promise<Finding> {
  await running.restart(configure(states.restarted));
  return served(callers, atRestart, systemClock.monotonic());
}

const reloading = (setup: Setup): Scenario => ({
  name: `limits changed by reload and restart, ${setup}`,
  async run(): Promise<Row> {
    const simulator = await startSimulator('language-model', {
      models: { 'gpt-4o': { rpm: 100_000, tpm: 100_000_000 } },
      latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
    });
    const configure = configurations(simulator.url);
    const running = await run(setup, configure(states.before));
    const callers = new Callers(() => running.fleet);
    const world = { running, callers, configure };
    await callers.oneByOne(lowered, 10);
    const findings = [...(await raising(world)), ...(await lowering(world)), await restarting(world)];
    await running.end(simulator);
    const isKept = ({ holds, isInTime = true }: Finding): boolean => holds && isInTime;
    const inWords = (kept: boolean): string =>
      findings
        .filter((finding) => isKept(finding) === kept)
        .map(({ words }) => words)
        .join('; ');
    const broken = findings.filter((finding) => !isKept(finding)).length;
    return {
      holds: findings.every(({ holds }) => holds),
      holdsWhenQuiet: broken === 0,
      figures: `${findings.length - broken} of ${findings.length} hold${broken === 0 ? '' : `; BROKEN: ${inWords(false)}; the others`}: ${inWords(true)}`,
    };
  },
});

export const reloads = {
  embedded: reloading(setups.embedded),
  replicas: reloading(setups.replicas),
};
