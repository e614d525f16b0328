/** What happens in one history, decided from its seed. `calm` buckets have an upstream that does what it states, and nobody else uses: no 429 at all there. */
import type { Costs } from '../../src/call.ts';
import type { Origin } from '../support/origins.ts';
import type { WindowPlan } from './described.ts';
import { mixedPlanOf } from './plan-mixed.ts';
import { faultyPlanOf, steadyPlanOf } from './replicas/plan.ts';
import type { Reloaded } from './rules.ts';

export interface MeterPlan {
  readonly limit: number;
  readonly windowMs: number;
}

export interface BucketPlan {
  readonly key: string;
  readonly calm: boolean;
  /** The upstream does what its responses state, and nobody else uses it: a wait that the gateway states can be held against it. */
  readonly isReliable: boolean;
  readonly requests: MeterPlan;
  readonly tokens: MeterPlan | null;
  readonly perDay: number | null;
  readonly cost: MeterPlan | null;
  /** What GraphQL calls ask for; empty = they ask for what they are taken to cost. */
  readonly documents: readonly DocumentPlan[];
  /** What the operator stated, as a share of the truth; `null` = nothing. */
  readonly statedShare: number | null;
  readonly learn: boolean;
  readonly probe: number;
  /** What responses tell of the level: the exact figure, whole units, nothing, or what a triple of fields can. */
  readonly reports: 'exact' | 'rounded' | 'nothing' | 'fields';
  /** All places of a window come back at its end; otherwise they come back one by one. */
  readonly isFixed: boolean;
  /** Share of the drain that somebody else takes. */
  readonly outsideShare: number;
  /** Outside traffic comes in bursts of this many units. */
  readonly outsideBurst: number;
  readonly startShare: number;
  readonly changes: readonly { readonly at: number; readonly factor: number }[];
  readonly hints: boolean;
  /** The windows that the operator describes and the upstream counts. Absent: it is not described. */
  readonly windows?: readonly WindowPlan[];
}

export interface LanePlan {
  readonly key: string;
  readonly workspace: string;
  readonly bucket: string;
  readonly weight: number;
  readonly maxInFlight: number | null;
}

export interface WorkspacePlan {
  readonly name: string;
  readonly perMinute: number | null;
  readonly perDay: number | null;
  readonly maxQueued: number;
  readonly revokedAt: number;
}

export interface DocumentPlan {
  readonly name: string;
  readonly points: number;
}

/** `lost`: it ran, but no response comes. `unsent`: the connection fails before a byte is out. */
export type Fate = 'answered' | 'lost' | 'unsent' | 'secondary' | 'overload' | 'permanent';

export interface CallPlan {
  readonly id: string;
  readonly at: number;
  readonly slot: number;
  readonly lane: LanePlan;
  readonly caller?: string;
  readonly callClass: string;
  readonly costs: Costs;
  /** A GraphQL document, whose cost only the upstream knows; `null` = the costs are right. */
  readonly document: DocumentPlan | null;
  /** What the upstream really charges, as a share of what it asks for. */
  readonly chargedShare: number;
  readonly urgency: number;
  readonly maxWaitMs: number;
  /** It is let in however long the line is. */
  readonly isLetIn: boolean;
  /** When its client leaves; `Infinity` = stays. */
  readonly leavesAt: number;
  /** From arrival at the upstream to the response's head, and from there to its last byte. */
  readonly serviceMs: number;
  readonly bodyMs: number;
  /** How its first attempt ends; later ones are answered. */
  readonly fate: Fate;
  readonly safe: boolean;
  /** If it is refused, its client comes back. Absent: it does not. */
  readonly reserves?: ReturnPlan;
}

export interface ReturnPlan {
  /** So long after the told time; `null` = never. Milliseconds. */
  readonly lateMs: number | null;
  readonly isTwice: boolean;
  readonly maxReserved: number;
}

/** Each share is the probability for one command or message. */
export interface NetworkPlan {
  readonly meanMs: number;
  readonly commandTimeoutMs: number;
  readonly lostRequests: number;
  /** The command is carried out, and its reply is lost. */
  readonly lostReplies: number;
  /** Carried out long after the asker has given up and asked again. */
  readonly late: number;
  readonly repeated: number;
  readonly lostMessages: number;
  readonly disorder: boolean;
}

export type Fault = { readonly at: number } & (
  | { readonly kind: 'pause'; readonly slot: number; readonly ms: number }
  /** A replica is killed; another one is started in its place after `ms` (`Infinity` = never). */
  | { readonly kind: 'kill'; readonly slot: number; readonly ms: number }
  | { readonly kind: 'step'; readonly slot: number; readonly ms: number }
  /** One replica is cut off: by broken connections, or unnoticed because packets vanish. */
  | { readonly kind: 'cut'; readonly slot: number; readonly ms: number; readonly mute: boolean }
  | { readonly kind: 'start' }
  | { readonly kind: 'flush' }
  /** A backup of the living Redis, or its first replica: its replication id changes, and nothing else. */
  | { readonly kind: 'replicate' }
  /** A replica of Redis that has everything becomes the primary; its clock differs. */
  | { readonly kind: 'promote'; readonly ms: number; readonly skewMs: number }
  /** Redis is not there. Back with its data, without, or as another server that lacks the last `lostMs`. */
  | { readonly kind: 'down'; readonly ms: number; readonly back: 'whole' | 'empty' }
  | { readonly kind: 'failover'; readonly ms: number; readonly lostMs: number; readonly skewMs: number }
  /** Redis stands still and answers later. */
  | { readonly kind: 'hang'; readonly ms: number }
);

export interface Plan extends Reloaded {
  readonly seed: number;
  /** Where the clock of Redis begins, or of the process alone. The times of a plan count from the beginning of the history. */
  readonly origin: Origin;
  /** What the monotonic clocks of the first replicas show then; later ones start at 0. Milliseconds. */
  readonly uptimesMs: readonly number[];
  readonly replicas: number;
  /** One process with its stores in its own memory; `network` is of no use then. Absent: they are in Redis. */
  readonly isAlone?: boolean;
  /** Share of the wake-ups of a process alone that never come. */
  readonly lostWakes?: number;
  /** Limits hold no call, and what they would do is only reckoned. Absent: they hold calls. */
  readonly mode?: 'observe';
  readonly whenDown: 'local' | 'deny';
  readonly leaseMs: number;
  readonly network: NetworkPlan;
  readonly faults: readonly Fault[];
  /** Share of sends before whose write the process stops for longer than a lease. */
  readonly frozenWrites: number;
  readonly calls: readonly CallPlan[];
}

/** `steady`: several replicas, and no reloads. */
export type Form = 'upstreams' | 'faults' | 'steady';

const planners = { upstreams: mixedPlanOf, faults: faultyPlanOf, steady: steadyPlanOf };
export const planOf = (form: Form, seed: number): Plan => planners[form](seed);
