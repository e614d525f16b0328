/**
 * The bucket scheduler on Redis, one source (`lua/library.lua`) made two ways: a function library, which a server of
 * Redis 7 loads once, and a script for older servers. What a call carries goes in KEYS and ARGV (`event-codec.ts`).
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { orderUnit, sequencePerMs } from '../../policy/bucket-state.policy.ts';
import { meterNames, requestWindows } from '../../policy/meter-names.policy.ts';
import { ceilingWindowMs } from '../../policy/ceiling.policy.ts';
import { maxCorrected, maxDocuments, maxProbeMs } from '../../policy/documents.policy.ts';
import * as firstCalls from '../../policy/first-calls.policy.ts';
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
import { usualWindowsMs } from '../../policy/window-learning.policy.ts';
import * as windowLog from '../../policy/window-log.policy.ts';
import { leasesPerTick, maxLeaseMs } from './event-codec.ts';

/** `apply` in both forms; Redis knows each by a digest, so that old and new replicas run their own side by side. */
export interface Scripts {
  /** For `FUNCTION LOAD`. */
  readonly library: string;
  /** The library's function. */
  readonly called: string;
  /** For `EVALSHA`. */
  readonly script: string;
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
  leasesPerTick,
  maxLeaseMs,
  maxArrivalAgoMs,
  maxArrivalAheadMs,
  maxCorrected,
  maxDocuments,
  maxOtherLimitsMs,
  maxProbeMs,
  maxWindows,
  meterNames,
  maxPerPump,
  orderUnit,
  replicaChannelPrefix,
  replicaLifeMs,
  requestWindows,
  sequencePerMs,
  unansweredMemoryMs,
  usualWindowsMs,
};

/** Both forms. Throws when a file is wrong (`lua-source.ts`). */
export function buildScripts(read: ReadLua = readLuaFile): Scripts {
  const source = luaSource('library', read, scriptConstants);
  const name = `sluice_${createHash('sha256').update(source).digest('hex').slice(0, 16)}`;
  const called = `${name}_apply`;
  return {
    library: `#!lua name=${name}\n${source}redis.register_function('${called}', apply)\n`,
    called,
    script: `${source}return apply(KEYS, ARGV)\n`,
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
