/** What a gateway did with the calls of a recording, in the form of a rehearsal, and how far a rehearsal is from it. */
import { recordedCall, recordingHeader } from '../../src/recording/format.ts';
import { asCounted } from '../../tools/rehearse/charges.ts';
import { reportOf, type Figures, type Report } from '../../tools/rehearse/figures.ts';
import type { RehearsedCall } from '../../tools/rehearse/rehearse.ts';
import { recordedLimits, recordedWorld } from '../../tools/rehearse/world.ts';

/** The lines of a recording, its calls in order of arrival. */
export function readRecording(text: string) {
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
  const { p50, p95 } = real.waitMs;
  const said = rehearsed?.waitMs;
  const pairs = [
    ['calls', real.calls, rehearsed?.calls ?? 0, 0],
    ['p50', p50 ?? 0, said?.p50 ?? 0, Math.max(grainMs, (p50 ?? 0) / 20)],
    ['p95', p95 ?? 0, said?.p95 ?? 0, Math.max(grainMs, (p95 ?? 0) / 20)],
    ['refused', real.refused, rehearsed?.refused ?? 0, Math.max(1, real.refused / 20)],
  ] as const;
  return pairs
    .filter(([, is, told, apart]) => Math.abs(is - told) > apart)
    .map(([figure, is, told]) => `${figure}: ${is} at the gateway, ${told} in the rehearsal`);
}
