/**
 * `sluice rehearse`: what recorded calls would meet under other limits. Owns the words for the terminal and the exit code; the rehearsal
 * itself is in `rehearse.ts`.
 */
import { writeFileSync } from 'node:fs';
import type { CliIo } from '../../src/cli/io.ts';
import { ConfigError, loadSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { reportOf, type Figures, type Report } from './figures.ts';
import { rehearseApart } from './apart.ts';
import { isPlaced, placedCalls, rehearse, type RehearsedCall } from './rehearse.ts';
import { readTraffic, TrafficError, type Traffic } from './traffic.ts';
import {
  configuredWorld,
  recordedLimits,
  recordedWorld,
  unmatched,
  usedBefore,
  type World,
} from './world.ts';
import type { Condition } from './condition.ts';
import { pictureOf } from './picture.ts';
import { tableOf } from './table.ts';

export interface RehearseCommand {
  /** A recording. */
  readonly traffic: string;
  /** `null` = under the limits of the recording. */
  readonly config: string | null;
  readonly times: number;
  readonly replicas: number;
  readonly isJson: boolean;
  /** Where to write a picture; `null` = none. */
  readonly svg: string | null;
  readonly failIf: readonly Condition[];
}

/** Of so many calls the rehearsals before and after run at the same time. */
const manyCalls = 5_000;

/** What the recorded calls are run under. */
interface Plan {
  readonly name: 'before' | 'after';
  readonly world: World;
  readonly times: number;
  readonly replicas: number;
}

interface Run {
  /** For a picture. */
  readonly calls: readonly RehearsedCall[];
  readonly report: Report;
}

/** Exit code 0; 1 where a condition holds; 2 where there is nothing to rehearse. */
export async function runRehearse(command: RehearseCommand, io: CliIo): Promise<number> {
  const read = filesOf(command, io);
  if (read === null) return 2;
  const { traffic, settings } = read;
  for (const note of notesOn(traffic, settings)) io.err(`note: ${note}`);
  const recorded = recordedLimits(traffic.header, traffic.calls);
  const former = recordedWorld(recorded);
  const world = settings === null ? former : configuredWorld(recorded, settings);
  const { times, replicas } = command;
  const under = {
    before: { name: 'before', world: former, times: 1, replicas: 1 },
    after: { name: 'after', world, times, replicas },
  } as const;
  const [before, after] =
    traffic.calls.length < manyCalls
      ? [await rehearsed(traffic, under.before, io), await rehearsed(traffic, under.after, io)]
      : await Promise.all([
          rehearsedApart(traffic, command.svg !== null),
          rehearsed(traffic, under.after, io),
        ]);
  if (command.isJson) io.out(JSON.stringify({ before: before.report, after: after.report }));
  else io.out(tableOf(before.report, after.report));
  if (command.svg !== null && !isWritten(command.svg, pictureOf(before.calls, after.calls), io)) return 2;
  const failures = command.failIf.flatMap((condition) => failuresOf(condition, after.report));
  for (const failure of failures) io.err(failure);
  return failures.length === 0 ? 0 : 1;
}

/** What the command reads; `null` = it cannot, which is said. */
function filesOf(
  { traffic, config }: RehearseCommand,
  io: CliIo,
): { readonly traffic: Traffic; readonly settings: Settings | null } | null {
  try {
    const settings = config === null ? null : loadSettings({ path: config, env: io.env });
    return { traffic: readTraffic(traffic), settings };
  } catch (error) {
    if (!(error instanceof TrafficError || error instanceof ConfigError)) throw error;
    io.err(error.message);
    return null;
  }
}

/** What whoever reads the figures has to know of them. */
function notesOn({ calls, isIncomplete }: Traffic, settings: Settings | null): string[] {
  const notes: string[] = [];
  const left = calls.filter((call) => !isPlaced(call)).length;
  if (isIncomplete) notes.push('the recording ended early: calls after that are missing.');
  if (left > 0) notes.push(`${left} calls were answered without being sent, and are left out.`);
  if (settings === null) return notes;
  const { upstreams, workspaces } = unmatched(calls, settings);
  if (upstreams.length > 0)
    notes.push(`${upstreams.join(', ')}: no upstream of the configuration; recorded limits hold for it.`);
  if (workspaces.length > 0) {
    const why = settings.privacy.labelKeyGenerated
      ? 'The configuration has no privacy.labelKey'
      : 'Labels agree only under the same privacy.labelKey';
    const names = workspaces.length > 3 ? `${workspaces.length} workspaces` : workspaces.join(', ');
    notes.push(
      `${names} of the recording: none of the configuration; weight and own ceilings stay as recorded. ${why}.`,
    );
  }
  return notes;
}

async function rehearsed({ header, calls }: Traffic, plan: Plan, io: CliIo): Promise<Run> {
  const { name, ...options } = plan;
  const onProgress = io.terminals.err ? progressOn(io, name) : () => {};
  const begins = { startsAt: Date.parse(header.startedAt), used: usedBefore(header) };
  const done = await rehearse(calls, { ...options, ...begins, onProgress });
  onProgress(1);
  return { calls: done, report: reportOf(done, plan.world) };
}

/** Under the limits of the recording. */
async function rehearsedApart(traffic: Traffic, isDrawn: boolean): Promise<Run> {
  const { fates, report } = await rehearseApart({ traffic, wantsFates: isDrawn });
  if (!isDrawn) return { calls: [], report };
  const calls = placedCalls(traffic.calls).flatMap((call, at) => {
    const fate = fates[at];
    return fate === undefined ? [] : [{ call, fate }];
  });
  return { calls, report };
}

/** A line that is written over. */
function progressOn(io: CliIo, name: string): (share: number) => void {
  let shown = -1;
  return (share) => {
    const percent = Math.floor(share * 100);
    if (percent === shown) return;
    io.err(`${shown < 0 ? '' : lineAbove}rehearsing, ${name}: ${percent} %`);
    shown = percent;
  };
}

/** Up a line, and nothing in it. */
const lineAbove = '\u001b[1A\u001b[2K';

function isWritten(file: string, text: string, io: CliIo): boolean {
  try {
    writeFileSync(file, text);
    return true;
  } catch {
    io.err(`${file}: cannot be written`);
    return false;
  }
}

function failuresOf(condition: Condition, { upstreams, workspaces }: Report): string[] {
  const all: [string, Figures][] = [...Object.entries(upstreams), ...Object.entries(workspaces)];
  return all.flatMap(([name, figures]) => {
    const value = condition.valueOf(figures);
    return value !== null && condition.holds(value) ? `${name}: ${condition.text} (it is ${value})` : [];
  });
}
