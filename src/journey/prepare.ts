/**
 * Turns a call whose caller, target and body are known into what admission and dispatch need of it: it asks each policy, in the order in
 * which one needs the other, and decides nothing itself. Which bucket the call counts against is in `call-bucket.ts`.
 */
import { callSettings, settingsOfOperation } from '../admission/buckets.policy.ts';
import type { AdmissionRequest } from '../admission/ticket.ts';
import type { Call, CallBody, Caller, Costs, Route } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { CallerPart, UpstreamSettings } from '../config/settings.ts';
import { describeCall, type CallDescription, type CallRequest } from '../dispatch/estimate.policy.ts';
import type { Pools } from '../dispatch/dispatcher.ts';
import type { NamedGuess, TokenEstimates } from '../dispatch/token-estimates.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { digest } from '../identity.ts';
import { backgroundLane, callerKey, ticketId, type CallerKey, type LaneKey, type TicketId } from '../ids.ts';
import { backgroundUrgency } from '../limiter/limiter.ts';
import { ceilingUnder } from '../limiter/policy/ceiling.policy.ts';
import type { OwnQuota } from '../quotas/joined-quotas.ts';
import type { RepeatKey } from '../repeats/repeat.ts';
import type { Egress, Runtime } from '../runtime.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import { bucketOf, type BucketSources } from './call-bucket.ts';
import { ceilingOf, laneOf, nameOf, readTicket, writeTicket } from './key-names.ts';
import {
  clientTimeouts,
  maxWaitMsOf,
  preferredWaitSeconds,
  prefersReservation,
  urgencyOf,
} from './preferences.policy.ts';
import { keysOfSharedCredential, repeatKeyOf } from './repeat-key.ts';
import type { ResponseTimes } from './response-times.ts';
import { separatorsOf } from './separators.policy.ts';

/** A call ready for admission. */
export interface Prepared extends Omit<Received, 'run'> {
  readonly description: CallDescription;
  readonly request: AdmissionRequest;
  /** Its wait is not the configured one: the call, or its client, has asked for another. */
  readonly asksForWait: boolean;
  readonly ownQuota: OwnQuota;
  /** The estimates that the call's tokens were computed from, which its response corrects; `null` = none. */
  readonly guess: NamedGuess | null;
  /** `null`: no other call repeats it, as far as the call shows. */
  readonly repeatKey: RepeatKey | null;
  /** Values with which fields of the client go upstream instead of its own, by lower-case name; `null` = all go as they came. */
  readonly replacedFields: ReadonlyMap<string, string> | null;
  readonly pools: Pools;
  /** As they were when the call began. */
  readonly egress: Egress;
}

interface Received {
  readonly call: Call;
  readonly caller: Caller;
  readonly route: Route;
  readonly body: CallBody;
  /** The runtime that the call began with. */
  readonly run: Runtime;
  readonly callRecord: CallRecord;
}

export interface PrepareParts extends Pick<BucketSources, 'quotas' | 'chosenBuckets'> {
  readonly clock: Pick<Clock, 'monotonic'>;
  readonly estimates: TokenEstimates;
  readonly responseTimes: ResponseTimes;
}

type Fields = ReadonlyMap<string, string>;

export function prepare(received: Received, parts: PrepareParts): Prepared {
  const { call, caller, body, run, callRecord } = received;
  const { workspace } = caller;
  const { labelKey } = run.settings.privacy;
  const { egress } = run;
  const now = parts.clock.monotonic();
  const fields = fieldMap(call.rawFields);

  // Where to, and what is asked for.
  const operation = `${call.method} ${withoutQuery(received.route.pathAndQuery)}`;
  const upstream = settingsOfOperation(received.route.upstream, operation);
  const route = upstream === received.route.upstream ? received.route : { ...received.route, upstream };
  const pools = egress.pools.get(upstream.name);
  if (pools === undefined) throw new Error('a route of another runtime');
  const sent: CallRequest = {
    method: call.method,
    path: route.pathAndQuery,
    contentType: fields.get('content-type') ?? null,
    rawFields: call.rawFields,
    body: body.bytes,
  };
  const description = describeCall(upstream.kind, sent);

  // What it counts against.
  const { account, own, bucket } = bucketOf(
    { caller, route, upstream: received.route.upstream, request: sent, description },
    { quotas: parts.quotas, chosenBuckets: parts.chosenBuckets, labelKey, now },
  );
  const workspaceLane = laneOf(bucket, workspace.id, labelKey);
  const urgency = urgencyOf(fields.get('priority'));
  const isBackground = urgency === backgroundUrgency || caller.key.isBackground;
  const lane = isBackground ? backgroundLane(workspaceLane) : workspaceLane;
  const settings = callSettings(workspace, upstream, isBackground);
  // What was learned of a model's charges holds for it alone, also where it shares the quota of others.
  const ownLane = own.bucket === bucket ? workspaceLane : laneOf(own.bucket, workspace.id, labelKey);
  const guess = description.guess === null ? null : { guess: description.guess, lane: ownLane };
  const byCaller = workspace.callers === null ? undefined : callerOf(received, workspace.callers, sent);
  callRecord.caller = byCaller;

  // How long it may wait, and what becomes of it if that is too short or it is sent twice.
  const { limits } = upstream;
  const patience = {
    preferSeconds: preferredWaitSeconds(fields.get('prefer')),
    client: clientTimeouts(fields),
    elapsedMs: now - call.receivedAt,
    usualResponseMs: parts.responseTimes.usualMs(bucket),
  };
  const maxWaitMs = maxWaitMsOf(patience, limits);
  const asksForWait = patience.preferSeconds !== null || maxWaitMs !== limits.maxWaitSeconds * 1_000;
  const repeatKey = repeatKeyOf({ call, caller, route, body, fields, labelKey, account });
  const { reservation, reserving } = reservationOf(fields, { repeatKey, lane, upstream, labelKey });

  const { costKey } = description;
  const plain = {
    ticket: ticketId(call.id),
    bucket,
    setting: settings.setting,
    lane,
    weight: settings.weight,
    maxInFlight: settings.maxInFlight,
    perMinute: settings.perMinute,
    ceilingTag: settings.ceilingTag,
    maxQueued: settings.maxQueued,
    urgency,
    callClass: description.callClass,
    costs: costsOf(description, guess, parts.estimates),
    document: costKey === null ? null : digest(labelKey, 'document', upstream.name, costKey),
  };
  // Objects are copied for those calls only that have a caller or a reservation.
  const admission =
    byCaller === undefined && reservation === undefined
      ? plain
      : {
          ...plain,
          ...(byCaller === undefined ? {} : { caller: byCaller }),
          ...(reservation === undefined ? {} : { reservation }),
        };
  const asked: AdmissionRequest = {
    admission,
    arrivedAt: arrivalOf(call, body),
    ceiling: ceilingUnder(ceilingOf(workspace, upstream, labelKey).key, settings),
    mode: settings.mode,
    yielded: settings.yielded,
    workspaceId: workspace.id,
    subject: {
      upstream: upstream.name,
      credential: account,
      bucket: own.bucket,
      host: route.host,
      model: description.model,
      operation,
    },
    maxWaitIfAskedMs: maxWaitMsOf({ ...patience, preferSeconds: limits.maxWaitCeilingSeconds }, limits),
    maxWaitMs,
    stillValid: caller.stillValid,
  };
  const request = reserving === undefined ? asked : { ...asked, reserving };
  const replacedFields = repeatKey?.marker === 'key' ? replacedIn(received, fields) : null;
  const known = { description, request, asksForWait, ownQuota: own, guess, repeatKey, replacedFields };
  return { call, caller, route, body, callRecord, pools, egress, ...known };
}

/** Who of the workspace makes the call; `undefined` = it names nobody. */
function callerOf(
  { caller: { workspace, key }, run }: Received,
  by: CallerPart,
  sent: CallRequest,
): CallerKey | undefined {
  const [text = ''] = by.kind === 'key' ? [key.sha256] : separatorsOf([by], sent);
  if (text === '') return undefined;
  return callerKey(`c_${nameOf(run.settings.privacy.labelKey, 'caller', [workspace.id, text]).slice(0, 16)}`);
}

/** The reservation that the call comes back for, and what is kept of it if it is refused for its wait. */
function reservationOf(
  fields: Fields,
  at: {
    readonly repeatKey: RepeatKey | null;
    readonly lane: LaneKey;
    readonly upstream: UpstreamSettings;
    readonly labelKey: string;
  },
): { readonly reservation?: TicketId; readonly reserving?: AdmissionRequest['reserving'] & {} } {
  const { repeatKey, lane, labelKey } = at;
  const { reserveSeconds, maxReserved } = at.upstream.limits;
  const begins = prefersReservation(fields.get('prefer'));
  // SDKs repeat a call at the time that they are told, but bring no ticket: it is known as a repeat.
  const name = begins && repeatKey !== null ? ticketId(repeatKey.name) : null;
  const repeated = repeatKey?.marker === 'first' ? null : name;
  const reservation = readTicket(fields.get('sluice-ticket'), lane, labelKey) ?? repeated;
  if (!begins && reservation === null) return noReservation;
  return {
    ...(reservation === null ? {} : { reservation }),
    reserving: {
      lastsMs: reserveSeconds * 1_000,
      maxReserved,
      ticketOf: (id) => writeTicket(id, lane, labelKey),
      begins,
      ...(name === null ? {} : { name }),
    },
  };
}

const noReservation = {};

/** The keys of a call whose credential serves other workspaces, too, as they go upstream. */
function replacedIn({ caller, route, run }: Received, fields: Fields): Prepared['replacedFields'] {
  const { credential } = route;
  if (credential === null || !run.isShared(credential.quota)) return null;
  // A key has to be the same after a restart, because the upstream may have run the call before it; a generated label key is not.
  const { labelKey, labelKeyGenerated } = run.settings.privacy;
  const secret = labelKeyGenerated ? credential.quota : labelKey;
  return keysOfSharedCredential({ fields, route }, caller.workspace.id, secret);
}

function withoutQuery(pathAndQuery: string): string {
  const at = pathAndQuery.indexOf('?');
  return at < 0 ? pathAndQuery : pathAndQuery.slice(0, at);
}

/** What the call takes from each meter: it counts against the day as it counts against the minute. */
function costsOf(
  { costs: described }: CallDescription,
  guess: NamedGuess | null,
  estimates: TokenEstimates,
): Costs {
  const costs = guess === null ? described : { ...described, ...estimates.expected(guess) };
  return {
    ...costs,
    ...(costs.requests === undefined ? {} : { requests_day: costs.requests }),
    ...(costs.tokens === undefined ? {} : { tokens_day: costs.tokens }),
  };
}

/**
 * A call arrives with the end of its body, less this allowance for reading a small one, and never before its head. Milliseconds.
 */
const readingMs = 250;

const arrivalOf = (call: Call, { completeAt }: CallBody): number =>
  completeAt === null ? call.receivedAt : Math.max(call.receivedAt, completeAt - readingMs);
