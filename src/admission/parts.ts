/** What the parts of admission are given. Types only. */
import type { Clock } from '../clock.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import type { Limiter } from '../limiter/limiter.ts';
import type { AdmissionRequest, BucketLane } from './ticket.ts';

export interface AdmissionParts {
  readonly clock: Clock;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
  /** Where a call belongs since its bucket was joined into another one; `null` = where it is. */
  readonly homeOf: (request: AdmissionRequest) => BucketLane | null;
  /** Lets work of a store go on by itself; its failure is reported. */
  readonly background: (work: Promise<unknown>) => void;
}
