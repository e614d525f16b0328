/** Follows refusals up and tells what was wrong, in the words of the other invariants. Owns no judgement (`oracle.ts`). */
import { judge, type Lives, type Verdict } from './oracle.ts';
import type { RefusedCall } from './refused-call.ts';

export interface FollowedUp {
  readonly wrong: readonly string[];
  /** How often each verdict was given. */
  readonly verdicts: ReadonlyMap<Verdict['kind'], number>;
}

export async function followUp(lives: Lives, refused: readonly RefusedCall[]): Promise<FollowedUp> {
  const wrong: string[] = [];
  const verdicts = new Map<Verdict['kind'], number>();
  for (const each of refused) {
    const verdict = await judge(lives, each);
    verdicts.set(verdict.kind, (verdicts.get(verdict.kind) ?? 0) + 1);
    if (verdict.kind === 'false') wrong.push(`13 at ${each.at.toFixed(2)}: ${verdict.text}`);
  }
  return { wrong, verdicts };
}
