/**
 * Which calls are traced: the standard samplers, decided before the SDK is asked. Pure. Even an unsampled span costs the
 * SDK some 25 µs; a call that is left out here costs nothing. Every span that reaches the SDK is recorded.
 */

/** `parent`: the client's own decision counts where there is one. */
export interface Sampling {
  readonly parent: boolean;
  /** Share of the calls without a deciding parent, 0 to 1. */
  readonly ratio: number;
}

/** Reads `OTEL_TRACES_SAMPLER` and its argument. Unknown names and arguments out of range mean the standard's default: all, parents decide. */
export function samplingOf(name: string | undefined, argument: string | undefined): Sampling {
  const given = Number(argument === undefined || argument.trim() === '' ? Number.NaN : argument);
  const ratio = given >= 0 && given <= 1 ? given : 1;
  switch (name?.trim() ?? '') {
    case 'always_on':
      return { parent: false, ratio: 1 };
    case 'always_off':
      return { parent: false, ratio: 0 };
    case 'parentbased_always_off':
      return { parent: true, ratio: 0 };
    case 'traceidratio':
      return { parent: false, ratio };
    case 'parentbased_traceidratio':
      return { parent: true, ratio };
    default:
      return { parent: true, ratio: 1 };
  }
}

/** Caller's span, from its `traceparent`. */
export interface Parent {
  readonly traceId: string;
  readonly sampled: boolean;
}

/**
 * True when the call is traced. Without a parent `draw` (uniform in [0, 1)) decides; with one the last 56 bits of its
 * trace id do, as W3C Trace Context level 2 lets them, so that all services with the same ratio agree.
 */
export function isSampled(
  { parent: parentDecides, ratio }: Sampling,
  parent: Parent | null,
  draw: () => number,
): boolean {
  if (parent === null) return ratio >= 1 || (ratio > 0 && draw() < ratio);
  if (parentDecides) return parent.sampled;
  return Number.parseInt(parent.traceId.slice(18), 16) / 2 ** 56 >= 1 - ratio;
}
