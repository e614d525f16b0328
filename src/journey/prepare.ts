/**
 * Turns a call whose caller, target and body are known into what admission and dispatch need of it: it asks each policy, in the order in
 * which one needs the other, and decides nothing itself. Which bucket the call counts against is in `call-bucket.ts`.
 */
import { callSettings, ceilingUnder, settingsOfOperation } from '../admission/buckets.policy.ts';
import type { AdmissionRequest } from '../admission/ticket.ts';
import type { Call, CallBody, Caller, Costs, Route } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import { describeCall, type CallDescription, type CallRequest } from '../dispatch/estimate.policy.ts';
import type { Pools, Dispatcher } from '../dispatch/dispatcher.ts';
import type { NamedGuess, TokenEstimates, RecentResponses } from './recent-responses.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { digest } from '../identity.ts';
import { backgroundLane, callerKey, ticketId, type CallerKey, type LaneKey, type TicketId } from '../ids.ts';
import { backgroundUrgency } from '../limiter/limiter.ts';
import type { OwnQuota, JoinedQuotas } from '../quotas/joined-quotas.ts';
import type { RepeatKey } from '../repeats/repeat.ts';
import type { Egress, Runtime } from '../runtime.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import {
  bucketOf,
  ceilingOf,
  laneOf,
  nameOf,
  readTicket,
  writeTicket,
  separatorsOf,
  type ChosenBuckets,
} from './call-bucket.ts';
import {
  clientTimeouts,
  maxWaitMsOf,
  preferredWaitSeconds,
  prefersReservation,
  urgencyOf,
} from '../client-waits.policy.ts';
import { keysOfSharedCredential, repeatKeyOf } from './repeat-key.ts';
import type { AdmissionQueue } from '../admission/admission.ts';
import type { Keyring } from '../auth/authenticate.ts';
import type { Breakers } from '../breaker/breakers.ts';
import type { Clock } from '../clock.ts';
import type { Controls } from '../control/controls.ts';
import type { Credentials } from '../credentials/credentials.ts';
import type { Ceilings } from '../limiter/ceiling-store.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';

interface Received {
  readonly call: Call;
  readonly caller: Caller;
  readonly route: Route;
  readonly body: CallBody;
  /** The runtime that the call began with. */
  readonly run: Runtime;
  readonly callRecord: CallRecord;
}

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

type Fields = ReadonlyMap<string, string>;

export function prepare(received: Received, parts: FlowParts): Prepared {
  const { call, caller, route: found, body, run, callRecord } = received;
  const { workspace } = caller;
  const { labelKey } = run.settings.privacy;
  const { egress } = run;
  const now = parts.clock.monotonic();
  const fields = fieldMap(call.rawFields);

  // Where to, and what is asked for.
  const [path = ''] = found.pathAndQuery.split('?', 1);
  const operation = `${call.method} ${path}`;
  const upstream = settingsOfOperation(found.upstream, operation);
  const route = upstream === found.upstream ? found : { ...found, upstream };
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
    { caller, route, whole: found.upstream, request: sent, description, labelKey, now },
    parts,
  );
  const urgency = urgencyOf(fields.get('priority'));
  const isBackground = urgency === backgroundUrgency || caller.key.isBackground;
  const ownLane = laneOf(own.bucket, workspace.id, labelKey);
  const foreground = bucket === own.bucket ? ownLane : laneOf(bucket, workspace.id, labelKey);
  const lane = isBackground ? backgroundLane(foreground) : foreground;
  const settings = callSettings(workspace, upstream, isBackground);
  // What was learned of a model's charges holds for it alone, also where it shares the quota of others.
  const guess = description.guess === null ? null : { guess: description.guess, lane: ownLane };
  const named = callerOf(received, sent);
  callRecord.caller = named;

  // How long it may wait, and what becomes of it if that is too short or it is sent twice.
  const { limits } = upstream;
  const patience = {
    preferSeconds: preferredWaitSeconds(fields.get('prefer')),
    client: clientTimeouts(fields),
    elapsedMs: now - call.receivedAt,
  };
  const maxWaitMs = maxWaitMsOf(patience, limits);
  const repeating = { call, caller, route, body, fields, labelKey, account };
  const repeatKey = repeatKeyOf(repeating);
  const { reservation, ...reserved } = reservationOf(fields, { repeatKey, lane, limits, labelKey });
  const { costKey } = description;
  const request: AdmissionRequest = {
    admission: {
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
      costs: withDays(description.costs, guess === null ? null : parts.estimates.expected(guess)),
      document: costKey === null ? null : digest(labelKey, 'document', upstream.name, costKey),
      ...(named === undefined ? {} : { caller: named }),
      ...(reservation === undefined ? {} : { reservation }),
    },
    ...reserved,
    arrivedAt: arrivalOf(call, body),
    ceiling: ceilingUnder(ceilingOf(workspace.id, upstream.name, labelKey), settings),
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
  return {
    call,
    caller,
    route,
    body,
    callRecord,
    pools,
    egress,
    description,
    request,
    guess,
    repeatKey,
    asksForWait: patience.preferSeconds !== null || maxWaitMs !== limits.maxWaitSeconds * 1_000,
    ownQuota: own,
    replacedFields: repeatKey?.marker === 'key' ? keysOfSharedCredential(repeating, run) : null,
  };
}

/** Who of the workspace makes the call; `undefined` = its workspace does not tell callers apart, or it names nobody. */
function callerOf({ caller: { workspace, key }, run }: Received, sent: CallRequest): CallerKey | undefined {
  const by = workspace.callers;
  if (by === null) return undefined;
  const [text = ''] = by.kind === 'key' ? [key.sha256] : separatorsOf([by], sent);
  if (text === '') return undefined;
  return callerKey(`c_${nameOf(run.settings.privacy.labelKey, 'caller', workspace.id, text).slice(0, 16)}`);
}

/** The reservation that the call comes back for, and what is kept of it if it is refused for its wait. */
function reservationOf(
  fields: Fields,
  call: {
    readonly repeatKey: RepeatKey | null;
    readonly lane: LaneKey;
    readonly limits: UpstreamSettings['limits'];
    readonly labelKey: string;
  },
): { readonly reservation?: TicketId } & Pick<AdmissionRequest, 'reserving'> {
  const { repeatKey, lane, limits, labelKey } = call;
  const begins = prefersReservation(fields.get('prefer'));
  // SDKs repeat a call at the time that they are told, but bring no ticket: it is known as a repeat.
  const name = begins && repeatKey !== null ? ticketId(repeatKey.name) : null;
  const repeated = repeatKey?.marker === 'first' ? null : name;
  const reservation = readTicket(fields.get('sluice-ticket'), lane, labelKey) ?? repeated;
  if (!begins && reservation === null) return none;
  return {
    ...(reservation === null ? {} : { reservation }),
    reserving: {
      lastsMs: limits.reserveSeconds * 1_000,
      maxReserved: limits.maxReserved,
      ticketOf: (id) => writeTicket(id, lane, labelKey),
      begins,
      ...(name === null ? {} : { name }),
    },
  };
}

const none = {};

/** What counts against the minute counts against the day. `expected`: tokens, in the place of those in `costs`. */
export function withDays(costs: Costs, expected: Costs | null = null): Costs {
  const all: { -readonly [meter in keyof Costs]: Costs[meter] } = { ...costs, ...expected };
  if (all.requests !== undefined) all.requests_day = all.requests;
  if (all.tokens !== undefined) all.tokens_day = all.tokens;
  return all;
}

/**
 * A call arrives with the end of its body, less this allowance for reading a small one, and never before its head. Milliseconds.
 */
const readingMs = 250;

const arrivalOf = (call: Call, { completeAt }: CallBody): number =>
  completeAt === null ? call.receivedAt : Math.max(call.receivedAt, completeAt - readingMs);

// The parts of the process that a call flows through, of which each stage takes what it needs. Types only.

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
