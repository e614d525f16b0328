/** What a gateway did with the calls of a recording, in the form of a rehearsal, and how far a rehearsal is from it. */
import {
  recordedCall,
  recordingHeader,
  type RecordedCall,
  type RecordingHeader,
} from '../../src/recording/format.ts';
import { asCounted } from '../../tools/rehearse/charges.ts';
import { reportOf, type Figures, type Report } from '../../tools/rehearse/figures.ts';
import type { RehearsedCall } from '../../tools/rehearse/rehearse.ts';
import { recordedLimits, recordedWorld } from '../../tools/rehearse/world.ts';

/** The lines of a recording, its calls in order of arrival. */
export function readRecording(text: string): {
  readonly header: RecordingHeader;
  readonly calls: readonly RecordedCall[];
} {
  const [first = '', ...lines] = text.trim().split('\n');
  const calls = lines.map((line) => recordedCall.parse(JSON.parse(line))).toSorted((a, b) => a.at - b.at);
  const header = recordingHeader.parse(JSON.parse(first));
  return { header, calls: asCounted(header, calls) };
}

export function lived(text: string): Report {
  const { header, calls } = readRecording(text);
  const done = [...Map.groupBy(calls, (call) => call.reservation ?? call).values()].flatMap((attempts) => {
    const [first, last] = [attempts[0], attempts.at(-1)];
    if (first === undefined || last === undefined) return [];
    const kind = last.serviceMs === null || last.outcome === 'throttled' ? 'refused' : 'sent';
    const fate = { kind, afterMs: last.at + last.waitedMs - first.at } as const;
    return [{ call: { ...last, at: first.at }, fate } satisfies RehearsedCall];
  });
  return reportOf(done, recordedWorld(recordedLimits(header, calls)));
}

/** The figures that are more than 5 % and so many milliseconds, or one refusal, apart. */
export function farApart(real: Figures, rehearsed: Figures | undefined, grainMs: number): string[] {
  const pairs = [
    ['calls', real.calls, rehearsed?.calls ?? 0, 0],
    ['p50', real.waitMs.p50 ?? 0, rehearsed?.waitMs.p50 ?? 0, Math.max(grainMs, (real.waitMs.p50 ?? 0) / 20)],
    ['p95', real.waitMs.p95 ?? 0, rehearsed?.waitMs.p95 ?? 0, Math.max(grainMs, (real.waitMs.p95 ?? 0) / 20)],
    ['refused', real.refused, rehearsed?.refused ?? 0, Math.max(1, real.refused / 20)],
  ] as const;
  return pairs
    .filter(([, is, said, apart]) => Math.abs(is - said) > apart)
    .map(([figure, is, said]) => `${figure}: ${is} at the gateway, ${said} in the rehearsal`);
}
