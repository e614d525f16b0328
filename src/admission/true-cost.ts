/**
 * Calls whose cost only an answer tells: the first of its kind goes ahead, the others wait for what it is told
 * (docs/adr/0007). Refuses to own: the memory of costs (one `SharedCost` per kind comes with each call), what happens to a
 * grant that was made for too little (`charging.ts`). Keeps: nobody waits longer than `longestInquiryMs` to find out, and
 * whoever went ahead ends the inquiry, sent or not.
 */
import type { Clock } from '../clock.ts';
import { nextTurn, type Holder } from './holder.ts';

/** Calls wait this long at most for the answer that tells what they cost; then they go with the guess. Milliseconds. */
const longestInquiryMs = 5_000;

/** The grant was made for less than the call costs, or may turn out to cost. */
export function isCostOpen({ entry: { sharedCost }, costs }: Holder): boolean {
  if (sharedCost === undefined || sharedCost === null) return false;
  const { points, isUnasked, inquiry } = sharedCost;
  return points === null ? isUnasked || inquiry !== null : points > (costs.cost ?? 0);
}

/** The call is known to cost more than its grant took. */
export const isDearer = ({ entry, costs }: Holder): boolean =>
  (entry.sharedCost?.points ?? 0) > (costs.cost ?? 0);

/** Resolves when it is known what the call costs, when nobody can tell, or when it goes ahead itself to find out. */
export async function costTold(holder: Holder, clock: Clock): Promise<void> {
  const { sharedCost } = holder.entry;
  if (sharedCost === undefined || sharedCost === null) return;
  while (sharedCost.points === null && sharedCost.inquiry !== null && !holder.left) {
    await Promise.race([sharedCost.inquiry, nextTurn(holder)]);
  }
  if (sharedCost.points !== null || !sharedCost.isUnasked || holder.left) return;
  sharedCost.ask();
  holder.finding = true;
  const cancel = clock.after(longestInquiryMs, () => sharedCost.over(true));
  void sharedCost.inquiry?.then(cancel);
}

/** The call that went ahead is over; `asked` false: it was not sent, another may find out. */
export function findingEnds(holder: Holder, asked: boolean): void {
  holder.finding = false;
  holder.entry.sharedCost?.over(asked);
}
