/**
 * What a call asks for in its fields: how long it may wait (`Prefer: wait`, RFC 7240; its client's time-out) and how
 * urgent it is (`Priority`, RFC 9218). Pure.
 */
import type { ClientTimeouts } from './client-timeouts.policy.ts';

/** Seconds asked for by `Prefer: wait=<seconds>` (RFC 7240), or `null`. Malformed preferences are ignored, as the RFC asks. */
export function preferredWaitSeconds(prefer: string | undefined): number | null {
  if (prefer === undefined) return null;
  for (const preference of prefer.split(/[,;]/)) {
    const found = /^\s*wait\s*=\s*"?(\d{1,7})"?\s*$/i.exec(preference);
    if (found?.[1] !== undefined) return Number(found[1]);
  }
  return null;
}

/** True where a refused call is to keep its position: `Prefer: reserve`. */
export const prefersReservation = (prefer: string | undefined): boolean =>
  prefer?.split(',').some((preference) => /^\s*reserve\s*(?:;|$)/i.test(preference)) === true;

/** Urgency of `Priority: u=0..7` (RFC 9218), 3 when absent or malformed. */
export function urgencyOf(priority: string | undefined): number {
  const found = /(?:^|[,\s])u\s*=\s*([0-7])(?=$|[,;\s])/.exec(priority ?? '');
  return found?.[1] === undefined ? 3 : Number(found[1]);
}

/** How much of a client's time-out is kept for the response, or the refusal, to reach the client, seconds. */
const responseSeconds = 5;
/** Kept in addition to the upstream's usual time, for the way to the client, milliseconds; at most a tenth of the time-out. */
const marginMs = 1_000;

/**
 * How long a call may wait, milliseconds, at least 0: what the call asks for, up to the maximum (`maxWaitCeilingSeconds`),
 * else the default (`maxWaitSeconds`).
 *
 * A call never waits into its client's time-out: the refusal has to arrive before the client hangs up. The wait ends five
 * seconds before the time-out, so that they are left for the response; of a time-out under 7.5 s, a third is wait and two thirds
 * are left. Where the upstream usually takes longer for its response, that time is left instead, and up to a second more. A time-out that the call states
 * always counts. One that is only known of its client counts unless the call asks for a wait: `Prefer: wait` says how long this
 * client waits.
 */
export function maxWaitMsOf(
  asked: {
    readonly preferSeconds: number | null;
    readonly client: ClientTimeouts;
    /** Time since the call's head arrived: the client counts it, too. */
    readonly elapsedMs: number;
    /** How long the upstream usually takes to begin its response; absent = not known. */
    readonly usualResponseMs?: number;
  },
  limits: { readonly maxWaitSeconds: number; readonly maxWaitCeilingSeconds: number },
): number {
  const { preferSeconds, client, elapsedMs, usualResponseMs = 0 } = asked;
  const seconds =
    preferSeconds === null ? limits.maxWaitSeconds : Math.min(preferSeconds, limits.maxWaitCeilingSeconds);
  const timeouts =
    preferSeconds === null ? [client.statedSeconds, client.knownSeconds] : [client.statedSeconds];
  const bounds = timeouts.flatMap((timeout) =>
    timeout === null ? [] : [Math.max(0, waitBeforeMs(timeout * 1000, usualResponseMs) - elapsedMs)],
  );
  return Math.min(seconds * 1000, ...bounds);
}

/** The part of a time-out in which a call may wait. What the upstream usually takes for its response is no part of it. */
const waitBeforeMs = (timeoutMs: number, usualResponseMs: number): number =>
  Math.min(
    Math.max(timeoutMs - responseSeconds * 1000, timeoutMs / 3),
    Math.max(0, timeoutMs - usualResponseMs - Math.min(marginMs, timeoutMs / 10)),
  );
