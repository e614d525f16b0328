/**
 * What a HorizontalPodAutoscaler does with an AverageValue metric, as a pure function, so that targets can be tried out
 * and the documented examples are tested. Formula and tolerance: Kubernetes, "Horizontal Pod Autoscaling", algorithm details.
 */

/** Relative distance from the target within which nothing is changed. */
export const TOLERANCE = 0.1;

export interface Scale {
  readonly pods: number;
  /** Average per pod, calls. */
  readonly value: number;
  /** Wanted average per pod, calls. */
  readonly target: number;
  readonly min: number;
  readonly max: number;
}

/** Wanted pods, before the behavior's windows and policies. */
export function wantedReplicas({ pods, value, target, min, max }: Scale): number {
  const ratio = value / target;
  const wanted = Math.abs(ratio - 1) <= TOLERANCE ? pods : Math.ceil(pods * ratio);
  return Math.min(max, Math.max(min, wanted));
}
