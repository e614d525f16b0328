/** Each preset reads the responses that its provider documents, or that were recorded of it (`test/fixtures/presets/`). */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { dialectOf } from '../../../src/config/speaks.ts';
import { presetNames } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

interface Sample {
  readonly status: number;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: string;
  readonly expects: {
    readonly throttle?: string | null;
    readonly waitMs?: number | null;
    readonly expired?: boolean;
    /** Whom the refusal concerns; left out, its bucket. */
    readonly scope?: string;
    /** The name that the response gives to the quota. */
    readonly quota?: string;
    readonly meters?: readonly { meter: string; limit: number; used: number | null; windowMs?: number }[];
  };
}

const nowMs = 1_800_000_000_000;

const samplesOf = (name: string): readonly Sample[] =>
  JSON.parse(
    readFileSync(new URL(`../../fixtures/presets/${name}.json`, import.meta.url), 'utf8'),
  ) as readonly Sample[];

const all = presetNames.flatMap((name) =>
  samplesOf(name).map((sample, index) => [name, index + 1, sample] as const),
);

test.each(all)('%s reads its recorded response %i', (name, _, { status, fields, body, expects }) => {
  const facts = {
    status,
    fields: new Map(Object.entries(fields)),
    body,
    callClass: 'default',
    nowMs,
  };
  const { throttle, meters, refusesCredential, scope } = learnFrom('generic', facts, dialectOf(name).dialect);
  if (expects.throttle !== undefined) expect(throttle?.kind ?? null).toBe(expects.throttle);
  if (expects.waitMs !== undefined) expect(throttle?.waitMs).toBe(expects.waitMs);
  expect(refusesCredential ?? false).toBe(expects.expired ?? false);
  const concerned = throttle?.kind === 'rate' || throttle?.kind === 'permanent' ? throttle.scope : undefined;
  if (expects.throttle !== undefined) expect(concerned).toBe(expects.scope);
  if (expects.quota !== undefined) expect(scope?.name).toBe(expects.quota);
  if (expects.meters === undefined) return;
  const found = meters.map(({ meter, limit, windowMs, level }) => ({
    meter,
    limit,
    used: level === null ? null : level.highest,
    ...(windowMs === null ? {} : { windowMs }),
  }));
  expect(found).toEqual(expects.meters);
});
