/** What rehearsed calls add up to, by upstream and by workspace. Pure. */
import type { Costs, MeterName } from '../../src/call.ts';
import { withDays } from '../../src/journey/prepare.ts';
import { requestWindows } from '../../src/limiter/policy/meter.policy.ts';
import type { RehearsedCall } from './rehearse.ts';
import type { World } from './world.ts';

export interface Figures {
  readonly calls: number;
  readonly refused: number;
  /** Of calls that left, milliseconds; `null` = none did. */
  readonly waitMs: { readonly p50: number | null; readonly p95: number | null; readonly max: number | null };
  /** Calls that left within 60 s, at most. */
  readonly busiestMinute: number;
  /**
   * The part of its fullest limit that was used, 0 to 1: of a quota, or of a ceiling. A workspace has only what it used itself. `null` = there is
   * no limit.
   */
  readonly utilisation: number | null;
}

export interface Report {
  readonly upstreams: Readonly<Record<string, Figures>>;
  readonly workspaces: Readonly<Record<string, Figures>>;
}

const minuteMs = 60_000;
const dayMs = 86_400_000;

/** @param calls in order of arrival; `world`: the limits that they met */
export function reportOf(calls: readonly RehearsedCall[], world: World): Report {
  const [upstreams, workspaces] = [new Map<string, Group>(), new Map<string, Group>()];
  let endsAt = 0;
  for (const each of calls) {
    const { call, fate } = each;
    const groups = [groupOf(upstreams, call.upstream), groupOf(workspaces, call.workspace)];
    for (const group of groups) group.add(each);
    if (fate.kind !== 'sent') continue;
    endsAt = Math.max(endsAt, call.at + fate.afterMs);
    for (const use of usesOf(each, world)) for (const group of groups) group.use(use);
  }
  const spanMs = endsAt - (calls[0]?.call.at ?? 0);
  const figures = (groups: ReadonlyMap<string, Group>): Record<string, Figures> =>
    Object.fromEntries(Array.from(groups, ([name, group]) => [name, group.figures(spanMs)]));
  return { upstreams: figures(upstreams), workspaces: figures(workspaces) };
}

/** Units that a call took of one limit. */
interface Use {
  readonly of: string;
  readonly units: number;
  readonly limit: number;
  readonly windowMs: number;
}

function usesOf({ call }: RehearsedCall, world: World): Use[] {
  const { setting, perMinute, perDay } = world(call);
  const took = withDays(call.charged);
  const ceiling = `ceiling ${call.upstream} ${call.workspace}`;
  const uses = setting.meters.map(({ meter, limit, windowMs }) => {
    return { of: `${call.bucket} ${meter}`, units: unitsOf(took, meter), limit, windowMs };
  });
  if (perMinute !== null)
    uses.push({ of: `${ceiling} minute`, units: 1, limit: perMinute, windowMs: minuteMs });
  if (perDay !== null) uses.push({ of: `${ceiling} day`, units: 1, limit: perDay, windowMs: dayMs });
  return uses;
}

const unitsOf = (costs: Costs, meter: MeterName): number =>
  (requestWindows.includes(meter) ? costs.requests : costs[meter]) ?? 0;

class Group {
  #calls = 0;
  #refused = 0;
  readonly #waitsMs: number[] = [];
  readonly #leftAt: number[] = [];
  readonly #used = new Map<string, { units: number; readonly limit: number; readonly windowMs: number }>();

  add({ call, fate }: RehearsedCall): void {
    this.#calls += 1;
    if (fate.kind === 'refused') this.#refused += 1;
    if (fate.kind !== 'sent') return;
    this.#waitsMs.push(fate.afterMs);
    this.#leftAt.push(call.at + fate.afterMs);
  }

  use({ of, units, limit, windowMs }: Use): void {
    const used = this.#used.get(of);
    if (used === undefined) this.#used.set(of, { units, limit, windowMs });
    else used.units += units;
  }

  figures(spanMs: number): Figures {
    const waits = Float64Array.from(this.#waitsMs).sort();
    const share = (part: number): number | null => {
      const ms = waits[Math.min(waits.length - 1, Math.floor(waits.length * part))];
      return ms === undefined ? null : Math.round(ms);
    };
    const shares = Array.from(this.#used.values(), ({ units, limit, windowMs }) =>
      Math.min(1, units / (limit * Math.max(1, spanMs / windowMs))),
    );
    return {
      calls: this.#calls,
      refused: this.#refused,
      waitMs: { p50: share(0.5), p95: share(0.95), max: share(1) },
      busiestMinute: mostWithin(minuteMs, Float64Array.from(this.#leftAt).sort()),
      utilisation: shares.length === 0 ? null : Math.round(Math.max(...shares) * 1_000) / 1_000,
    };
  }
}

function groupOf(groups: Map<string, Group>, name: string): Group {
  let group = groups.get(name);
  if (group === undefined) groups.set(name, (group = new Group()));
  return group;
}

/** How many of these times lie within a window of this length, at most. */
function mostWithin(windowMs: number, sorted: Float64Array): number {
  let most = 0;
  let from = 0;
  sorted.forEach((time, index) => {
    while ((sorted[from] ?? time) <= time - windowMs) from += 1;
    most = Math.max(most, index - from + 1);
  });
  return most;
}
