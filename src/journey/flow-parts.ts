/** The parts of the process that a call flows through, of which each stage takes what it needs. Types only. */
import type { AdmissionQueue } from '../admission/admission.ts';
import type { Keyring } from '../auth/authenticate.ts';
import type { Breakers } from '../breaker/breakers.ts';
import type { Clock } from '../clock.ts';
import type { Controls } from '../control/controls.ts';
import type { Credentials } from '../credentials/credentials.ts';
import type { Dispatcher } from '../dispatch/dispatcher.ts';
import type { TokenEstimates, RecentResponses } from './recent-responses.ts';
import type { Ceilings } from '../limiter/ceiling-store.ts';
import type { JoinedQuotas } from '../quotas/joined-quotas.ts';
import type { Runtime } from '../runtime.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import type { ChosenBuckets } from './call-bucket.ts';

export interface FlowParts {
  readonly admission: AdmissionQueue;
  readonly breakers: Breakers;
  readonly ceilings: Ceilings;
  readonly chosenBuckets: ChosenBuckets;
  readonly clock: Clock;
  readonly controls: Controls;
  readonly credentials: Credentials;
  readonly dispatcher: Dispatcher;
  readonly estimates: TokenEstimates;
  readonly keyring: Keyring;
  readonly quotas: JoinedQuotas;
  readonly recentResponses: RecentResponses;
  /** The one in use: a waiting call is sent with the credential that is configured when it leaves. */
  readonly runtime: () => Runtime;
  readonly telemetry: Telemetry;
}
