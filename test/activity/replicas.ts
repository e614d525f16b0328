/** Replicas that only observe: real telemetry, recorder, labels and `/activity`, calls made by telling their facts. */
import type { SharedActivity } from '../../src/activity/recorder.ts';
import type { AllActivity } from '../../src/activity/activity.ts';
import type { Clock } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { Observation } from '../../src/observation/observation.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { callAt, fixedRandom } from '../telemetry/drive.ts';
import { manualClock } from '../support/manual-clock.ts';
import { workspaceSettings } from '../support/upstream-settings.ts';

const labelKey = 'a label key for tests only';
const upstreamNames = ['lm', 'shop'] as const;
const yaml = `privacy: { labelKey: "${labelKey}" }
log: { level: silent }
upstreams:
${upstreamNames.map((name) => `  ${name}: { origins: ["https://${name}.example"], credential: "Bearer one" }`).join('\n')}
workspaces: {}
`;

export type UpstreamName = (typeof upstreamNames)[number];

export const labelOf = (workspaceId: string): string => workspaceLabel(labelKey, workspaceId);

/** Settings with these workspaces, which may call both upstreams. */
export const settingsOf = (ids: Iterable<string>): Settings => ({
  ...parseSettings(yaml, { path: 'test.yaml', env: {} }),
  workspaces: new Map(Array.from(ids, (id) => [id, workspaceSettings(id, upstreamNames)])),
});

/** Time moves when the test says so; a timer without delay runs at once. */
export function observedClock(): Clock & { advance(ms: number): void } {
  const clock = manualClock();
  return {
    ...clock,
    after(delayMs, run) {
      if (delayMs > 0) return clock.after(delayMs, run);
      queueMicrotask(run);
      return () => {};
    },
  };
}

/** Lets everything happen that waits for nothing but its turn. */
export const settled = (): Promise<void> => new Promise((resume) => setImmediate(resume));

export interface ObservingReplica {
  /** A call that succeeds. */
  call(workspaceId: string, upstream?: UpstreamName): void;
  /** What `/activity` of the admin port answers. */
  activity(windowMs?: number): Promise<AllActivity>;
  metrics(): Promise<string>;
  close(): Promise<void>;
}

export function observingReplica(
  settings: Settings,
  clock: Clock,
  shared: SharedActivity | null = null,
): ObservingReplica {
  const observation = new Observation(settings, {
    clock,
    random: fixedRandom(0.5),
    destination: { write: () => {} },
    ...(shared === null ? {} : { shared }),
  });
  const { telemetry } = observation;
  const upstreams = new Map(upstreamNames.map((name) => [name, settings.upstreams.get(name)]));
  let made = 0;
  return {
    call(workspaceId, upstream = 'lm') {
      const to = upstreams.get(upstream);
      if (to === undefined) throw new Error('no such upstream');
      const call = telemetry.begin(callAt(clock, { id: `call-${++made}` }));
      call.workspaceId = workspaceId;
      call.routed(to);
      call.admitting();
      call.sent();
      call.answered(200, null);
      call.ended({ outcome: 'ok', status: 200, code: null });
    },
    activity: (windowMs = 3_600_000) => observation.activity.ofAll(windowMs),
    metrics: async () => (await telemetry.metrics()).body,
    close: () => observation.close(),
  };
}

/** Calls in every row, by upstream and label. */
export function callsIn({ workspaces }: AllActivity): Map<string, number> {
  const rows = new Map<string, number>();
  for (const { workspace, upstreams } of workspaces) {
    for (const lane of upstreams) {
      rows.set(`${lane.upstream} ${workspace}`, lane.recent.calls);
    }
  }
  return rows;
}

export const sum = (numbers: Iterable<number>): number => [...numbers].reduce((total, n) => total + n, 0);

/** The same every time, in an order that nothing else depends on. */
export function shuffled<T>(items: readonly T[], seed = 1): T[] {
  const made = [...items];
  let state = seed;
  for (let i = made.length - 1; i > 0; i--) {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    const j = Math.floor((state / 2_147_483_648) * (i + 1));
    [made[i], made[j]] = [made[j] as T, made[i] as T];
  }
  return made;
}
