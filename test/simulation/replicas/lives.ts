/**
 * Other courses of a history of several replicas, for the oracle of stated waits (`../oracle.ts`): the same up to a refusal,
 * and then quiet. What is not judged: refusals while a fault lasts or is being got over, and while replicas differ in what
 * they go by; and histories in which commands get lost or are carried out twice, for nobody knows then what they did.
 */
import { againOf, patient, returning } from '../counterfactual.ts';
import type { Lives } from '../oracle.ts';
import { isTakingOver, knownAt } from '../rules.ts';
import type { RefusedCall } from '../refused-call.ts';
import type { Fault, NetworkPlan, ReplicasPlan } from './plan.ts';
import { follow } from './simulate.ts';

/** After a fault replicas find Redis again, tell what they did, and enter their tickets again. Milliseconds. */
const recoveryMs = 6_000;
const tickMs = 1_500;

export const livesOf = (plan: ReplicasPlan): Lives => ({
  worldAt: (at) => ({
    ...knownAt(plan, at),
    wayMs: plan.network.meanMs,
    // A tick makes up for a message that was lost.
    slackMs: plan.network.lostMessages > 0 ? tickMs : 0,
    isDisturbed:
      isLossy(plan.network) ||
      plan.faults.some((fault) => fault.at <= at && at <= endOf(fault) + plan.leaseMs + recoveryMs) ||
      plan.frozenWrites > 0 ||
      plan.reloads.some((reload) => isTakingOver(reload, plan.network.meanMs, at)),
  }),
  stay: (refused, until) =>
    follow(quietFrom(patient(plan, refused), refused), refused.id, { after: refused.at, until }),
  returnLater: (refused, maxWaitMs) =>
    follow(quietFrom(returning(plan, refused, maxWaitMs), refused), againOf(refused.id), {
      after: refused.at,
      until: null,
    }),
});

const quietFrom = (plan: ReplicasPlan, { at }: RefusedCall): ReplicasPlan => ({
  ...plan,
  quietFrom: at,
  faults: plan.faults.filter((fault) => fault.at <= at),
  reloads: plan.reloads.filter((reload) => reload.at <= at),
});

const endOf = (fault: Fault): number =>
  fault.at + ('ms' in fault && fault.kind !== 'step' && fault.ms < Infinity ? fault.ms : 0);

const isLossy = ({ lostRequests, lostReplies, late, repeated, disorder }: NetworkPlan): boolean =>
  lostRequests + lostReplies + late + repeated > 0 || disorder;
