/**
 * The bucket scheduler (`lua/library.lua`) and the ceiling (`lua/consume.lua`) on Redis, each one source made two ways: a function of
 * one library, which a server of Redis 7 loads once, and a script for older servers. What a call carries goes in KEYS and ARGV
 * (`event-codec.ts`).
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { orderUnit, sequencePerMs } from '../../policy/bucket-state.policy.ts';
import { longerServiceShare, shorterServiceShare } from '../../policy/lessons.policy.ts';
import { dayMs, minuteMs } from '../../policy/meter-state.policy.ts';
import { meterNames, requestWindows, windowNames } from '../../policy/meter-names.policy.ts';
import { ceilingWindowMs } from '../../policy/ceiling.policy.ts';
import { maxCorrected, maxDocuments, maxProbeMs } from '../../policy/documents.policy.ts';
import * as firstCalls from '../../policy/first-calls.policy.ts';
import { maxLanes } from '../../policy/forecast-others.policy.ts';
import { maxWindows } from '../../policy/forecast.policy.ts';
import { replicaChannelPrefix } from './keys.ts';
import { luaSource, type Constants, type ReadLua } from './lua-source.ts';
import { blankMemoryMs, bucketMemoryMs, unansweredMemoryMs } from '../../policy/retention.policy.ts';
import * as bounds from '../../policy/meter-bounds.policy.ts';
import * as learning from '../../policy/meter-learning.policy.ts';
import * as meter from '../../policy/meter.policy.ts';
import * as others from '../../policy/meter-others.policy.ts';
import { maxPerPump, replicaLifeMs } from '../../policy/pump.policy.ts';
import { maxArrivalAgoMs, maxArrivalAheadMs, maxOtherLimitsMs } from '../../policy/scheduler.policy.ts';
import { roundedFromMs, roundingMs, usualWindowsMs } from '../../policy/window-learning.policy.ts';
import * as windowLog from '../../policy/window-log.policy.ts';
import { leasesPerTick, maxLeaseMs } from './event-codec.ts';

/** Commands of every call: functions of the library. */
const keyCounts = { apply: 4, consume: 2 } as const;
export type LibraryCommand = keyof typeof keyCounts;
export const libraryCommands = Object.keys(keyCounts) as readonly LibraryCommand[];

/** A command in both forms. */
export interface CommandForms {
  readonly numberOfKeys: number;
  /** The library's function. */
  readonly called: string;
  /** For `EVALSHA`. */
  readonly script: string;
}

/** Redis knows both forms by a digest, so that old and new replicas run their own side by side. */
export interface Scripts {
  /** For `FUNCTION LOAD`. */
  readonly library: string;
  readonly commands: Readonly<Record<LibraryCommand, CommandForms>>;
}

/** The constants among what a policy exports. */
function numbersOf(policy: object): Constants {
  return Object.fromEntries(
    Object.entries(policy).filter((entry): entry is [string, number] => typeof entry[1] === 'number'),
  );
}

/** What the scripts take over from the policy. */
export const scriptConstants: Constants = {
  ...numbersOf(firstCalls),
  ...numbersOf(meter),
  ...numbersOf(bounds),
  ...numbersOf(learning),
  ...numbersOf(others),
  ...numbersOf(windowLog),
  blankMemoryMs,
  bucketMemoryMs,
  ceilingWindowMs,
  dayMs,
  leasesPerTick,
  longerServiceShare,
  maxLeaseMs,
  maxArrivalAgoMs,
  maxArrivalAheadMs,
  maxCorrected,
  maxDocuments,
  maxOtherLimitsMs,
  maxProbeMs,
  maxLanes,
  maxWindows,
  meterNames,
  minuteMs,
  maxPerPump,
  orderUnit,
  replicaChannelPrefix,
  replicaLifeMs,
  requestWindows,
  roundedFromMs,
  roundingMs,
  sequencePerMs,
  shorterServiceShare,
  unansweredMemoryMs,
  usualWindowsMs,
  windowNames,
};

/** Both forms. Throws when a file is wrong (`lua-source.ts`). */
export function buildScripts(read: ReadLua = readLuaFile): Scripts {
  const apply = luaSource('library', read, scriptConstants);
  const consume = luaSource('consume', read, scriptConstants);
  // Lua allows 200 local names in one function: the ceiling's are in a block of their own.
  const parts = { consume: `do\n${consume}`, apply };
  const digest = createHash('sha256').update(consume).update(apply).digest('hex');
  const name = `sluice_${digest.slice(0, 16)}`;
  const called = (command: LibraryCommand): string => `${name}_${command}`;
  const registered = (command: LibraryCommand): string =>
    `${parts[command]}redis.register_function('${called(command)}', ${command})\n`;
  const forms = (command: LibraryCommand, source: string): CommandForms => ({
    numberOfKeys: keyCounts[command],
    called: called(command),
    script: `${source}return ${command}(KEYS, ARGV)\n`,
  });
  return {
    library: `#!lua name=${name}\n${registered('consume')}end\n${registered('apply')}`,
    commands: { apply: forms('apply', apply), consume: forms('consume', consume) },
  };
}

function readLuaFile(name: string): string | null {
  try {
    return readFileSync(new URL(`../lua/${name}.lua`, import.meta.url), 'utf8');
  } catch (failure) {
    if (failure instanceof Error && 'code' in failure && failure.code === 'ENOENT') return null;
    throw failure;
  }
}
