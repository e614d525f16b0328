/** What the parts of admission share: ports, and functions of the queue that built them. Types only. */
import type { Reckoned } from '../call.ts';
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
  /** The bucket, and lane of it, into which the call's own bucket was joined; `null` = the call is in the right bucket. */
  readonly joinedBucketOf: (request: AdmissionRequest) => BucketLane | null;
  /** It is known what limits would have done with a call that is only observed. */
  readonly onReckoned: (request: AdmissionRequest, reckoned: Reckoned) => void;
  /** Lets a store's operation run while nobody waits for it; its failure is reported. */
  readonly background: (work: Promise<unknown>) => void;
}
