/** What the parts of the desk are given. Types only. */
import type { Clock } from '../clock.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import type { Limiter } from '../limiter/limiter.ts';

export interface DeskParts {
  readonly clock: Clock;
  readonly limiter: () => Limiter;
  readonly ceilings: Ceilings;
  /** Lets work of a store go on by itself; its failure is reported. */
  readonly background: (work: Promise<unknown>) => void;
}
