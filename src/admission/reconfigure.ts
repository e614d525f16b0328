/**
 * A reload for calls that are in admission, here or at other replicas: each goes on under the new limits, and the limiter gets
 * the new settings of each bucket.
 *
 * Does not own: what the new settings are (the gateway), waking lanes (the limiter).
 * Keeps: a limit that was raised or taken away lets waiting calls go, one that was lowered holds them (14).
 */
import { isDeepStrictEqual } from 'node:util';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { ceilingUnder } from '../limiter/policy/ceiling.policy.ts';
import type { CallSettings } from './buckets.policy.ts';
import type { AdmissionParts, AdmissionRequest } from './ticket.ts';
import type { QueuedCall } from './queued-call.ts';

/** Puts calls under the settings that `settingsOf` has for them (`null` = unchanged). Returns those whose settings changed. */
export function reconfigure(
  { limiter, detached }: Pick<AdmissionParts, 'limiter' | 'detached'>,
  calls: Iterable<QueuedCall>,
  settingsOf: (request: AdmissionRequest) => CallSettings | null,
): readonly QueuedCall[] {
  const changed: QueuedCall[] = [];
  for (const call of calls) {
    const settings = settingsOf(call.request);
    if (settings === null || isSame(call.request, settings)) continue;
    call.request = withSettings(call.request, settings);
    call.lane.latest = call.request;
    changed.push(call);
  }
  const admissions = changed.map(({ request }) => request.admission);
  for (const [bucket, own] of Map.groupBy(admissions, (one) => one.bucket)) {
    const lanes = new Map(
      own.map(({ lane, weight, maxInFlight, perMinute, ceilingTag }) => [
        lane,
        { lane, weight, maxInFlight, perMinute, ceilingTag },
      ]),
    );
    for (const { setting } of own.slice(0, 1))
      detached(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
  }
  return changed;
}

/**
 * The request as default ceilings let it go: without them where a response of its bucket has stated a limit, here or at another replica.
 */
export function present(request: AdmissionRequest, limiter: Pick<Limiter, 'statesLimit'>): AdmissionRequest {
  const { yielded, admission } = request;
  return yielded !== null && limiter.statesLimit(admission.bucket) ? withSettings(request, yielded) : request;
}

const isSame = ({ admission }: AdmissionRequest, settings: CallSettings): boolean =>
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceilingTag === settings.ceilingTag &&
  admission.maxQueued === settings.maxQueued &&
  (admission.setting === settings.setting || isDeepStrictEqual(admission.setting, settings.setting));

export function withSettings(request: AdmissionRequest, settings: CallSettings): AdmissionRequest {
  const { setting, weight, maxInFlight, ceilingTag, maxQueued, perMinute, yielded } = settings;
  return {
    ...request,
    yielded,
    admission: { ...request.admission, setting, weight, maxInFlight, perMinute, ceilingTag, maxQueued },
    ceiling: ceilingUnder(request.ceiling.key, settings),
  };
}
