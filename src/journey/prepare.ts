/**
 * Turns a call whose caller, target and body are known into what admission and dispatch need of it.
 *
 * Owns: combining what the stages decide (bucket, lane, ceiling, wait, costs), and the keyed digests that name them.
 * Does not own: any of the decisions behind them. Invariant: nothing that leaves here under a key name (bucket, lane,
 * ceiling) can be read back without the label key.
 */
import {
  bucketParts,
  callSettings,
  ceilingLimits,
  settingsOfOperation,
} from '../admission/buckets.policy.ts';
import type { AdmissionRequest } from '../admission/ticket.ts';
import type { Call, CallBody, Caller, Costs, Route } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { CallerPart, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { accountOfWorkspace, broughtAccount } from '../credential-carriers.policy.ts';
import { describeCall, type CallDescription } from '../dispatch/estimate.policy.ts';
import { modelClass } from '../dispatch/model-call.policy.ts';
import type { NamedGuess, TokenEstimates } from '../dispatch/token-estimates.ts';
import type { Pools } from '../dispatch/dispatcher.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { type CeilingRef, ceilingUnder } from '../limiter/policy/ceiling.policy.ts';
import { backgroundUrgency } from '../limiter/limiter.ts';
import { digest } from '../identity.ts';
import {
  backgroundLane,
  bucketKey,
  callerKey,
  ceilingKey,
  laneKey,
  ticketId,
  type BucketKey,
  type CallerKey,
  type LaneKey,
} from '../ids.ts';
import { LRUCache } from 'lru-cache';
import type { JoinedQuotas, OwnQuota } from '../quotas/joined-quotas.ts';
import type { Egress, Runtime } from '../runtime.ts';
import type { ChosenBuckets } from './chosen-buckets.ts';
import type { ResponseTimes } from './response-times.ts';
import {
  clientTimeouts,
  maxWaitMsOf,
  preferredWaitSeconds,
  prefersReservation,
  urgencyOf,
} from './preferences.policy.ts';
import { callFormOf, separatorsOf, type SeparatedCall } from './separators.policy.ts';
import { readTicket, writeTicket } from './sluice-ticket.ts';
import type { RepeatKey } from '../repeats/repeat.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import { keysOfSharedCredential, repeatKeyOf } from './repeat-key.ts';

/** A call ready for admission. */
export interface Prepared {
  readonly call: Call;
  readonly caller: Caller;
  readonly route: Route;
  readonly body: CallBody;
  readonly description: CallDescription;
  readonly request: AdmissionRequest;
  /** Its wait is not the configured one: the call, or its client, has asked for another. */
  readonly asksForWait: boolean;
  /** The bucket that the call's own parts name; its quota may turn out to be that of another bucket (`quotas/`). */
  readonly ownQuota: OwnQuota;
  /** The estimates that the call's tokens were computed from, which its response corrects; `null` = none. */
  readonly guess: NamedGuess | null;
  /** `null`: no other call repeats it, as far as the call shows. */
  readonly repeatKey: RepeatKey | null;
  /** Values with which fields of the client go upstream instead of its own, by lower-case name; `null` = all go as they came. */
  readonly replacedFields: ReadonlyMap<string, string> | null;
  readonly pools: Pools;
  readonly callRecord: CallRecord;
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

export interface PrepareParts {
  readonly clock: Pick<Clock, 'monotonic'>;
  readonly estimates: TokenEstimates;
  readonly responseTimes: ResponseTimes;
  readonly quotas: Pick<JoinedQuotas, 'bucketOf' | 'nameOf'>;
  readonly chosenBuckets: ChosenBuckets;
}

export function prepare(received: Received, parts: PrepareParts): Prepared {
  const { call, caller, body, run, callRecord } = received;
  const { estimates, responseTimes, quotas, chosenBuckets } = parts;
  const { labelKey } = run.settings.privacy;
  const { egress } = run;
  const now = parts.clock.monotonic();
  const operation = `${call.method} ${withoutQuery(received.route.pathAndQuery)}`;
  const upstream = settingsOfOperation(received.route.upstream, operation);
  const route = upstream === received.route.upstream ? received.route : { ...received.route, upstream };
  const pools = egress.pools.get(upstream.name);
  if (pools === undefined) throw new Error('a route of another runtime');
  const { workspace } = caller;
  const fields = fieldMap(call.rawFields);
  const description = describeCall(upstream.kind, {
    method: call.method,
    path: route.pathAndQuery,
    contentType: fields.get('content-type') ?? null,
    rawFields: call.rawFields,
    body: body.bytes,
  });
  const name = (purpose: string, ...parts: string[]): string => nameOf(labelKey, purpose, parts);
  const brought =
    route.credential === null
      ? broughtAccount(
          {
            workspaceId: workspace.id,
            rawFields: call.rawFields,
            pathAndQuery: route.pathAndQuery,
            keyFields: caller.keyFields,
          },
          upstream.carriers,
        )
      : null;
  // A call without any credential that can be seen must not share the quota of another workspace, whose account is another.
  const quota = route.credential?.quota ?? brought ?? accountOfWorkspace(workspace.id);
  const model = description.model === null ? null : modelClass(description.model);
  const separated: SeparatedCall = {
    method: call.method,
    pathAndQuery: route.pathAndQuery,
    contentType: fields.get('content-type') ?? null,
    rawFields: call.rawFields,
    body: body.bytes,
  };
  const separate = separatorsOf(upstream.dialect?.separators ?? [], separated);
  const isNamed = (upstream.dialect?.namedIn ?? null) !== null;
  const form = isNamed ? callFormOf(separated) : null;
  const quotaName = form === null ? null : quotas.nameOf(upstream.name, form);
  // Models that a client invents for an account of its own open windows of nobody else's.
  const separateModel = brought === null && upstream.bucketBy.includes('model') ? (model ?? '') : '';
  const ownForm = quotaName === null ? (form ?? '') : '';
  const chosen = [brought ?? '', separateModel, ...separate, ownForm];
  const hasOwnBucket =
    chosen.every((value) => value === '') ||
    chosenBuckets.hasOwn(
      { workspaceId: workspace.id, upstream: received.route.upstream },
      name('chosen values', ...chosen),
      now,
    );
  const shares = bucketParts(upstream, {
    credential: hasOwnBucket || brought === null ? quota : accountOfWorkspace(workspace.id),
    host: route.host,
    model: hasOwnBucket ? model : null,
    separate: hasOwnBucket ? separate : [],
  });
  const tier = shares.model === '' || description.tier === '' ? [] : [description.tier];
  const { credential, host } = shares;
  const ofOperation = upstream.dialect?.operation ?? nothing;
  const names = [
    shares.upstream,
    credential,
    host,
    shares.model,
    ...tier,
    ...ofOperation,
    ...shares.separate,
  ];
  const log = name('log', shares.upstream, credential);
  const naming = form === null ? nothing : quotaName === null ? ['form', form] : ['name', quotaName];
  const own = bucketKey(
    `${log}.${hasOwnBucket ? name('bucket', ...names, ...naming) : name('further bucket', workspace.id, ...names)}`,
  );
  const bucket = quotas.bucketOf(own);
  const workspaceLane = laneOf(bucket, workspace.id, labelKey);
  const urgency = urgencyOf(fields.get('priority'));
  const isBackground = urgency === backgroundUrgency || caller.key.isBackground;
  const lane = isBackground ? backgroundLane(workspaceLane) : workspaceLane;
  const { limits } = upstream;
  const settings = callSettings(workspace, upstream, isBackground);
  const { mode, setting, weight, maxInFlight, perMinute, ceilingTag, maxQueued, yielded } = settings;
  const { costKey } = description;
  // What was learned of a model's charges holds for it alone, also where it shares the quota of others.
  const ownLane = own === bucket ? workspaceLane : laneOf(own, workspace.id, labelKey);
  const guess = description.guess === null ? null : { guess: description.guess, lane: ownLane };
  const patience = {
    preferSeconds: preferredWaitSeconds(fields.get('prefer')),
    client: clientTimeouts(fields),
    elapsedMs: now - call.receivedAt,
    usualResponseMs: responseTimes.usualMs(bucket),
  };
  const maxWaitMs = maxWaitMsOf(patience, limits);
  const asksForWait = patience.preferSeconds !== null || maxWaitMs !== limits.maxWaitSeconds * 1_000;
  const byCaller = workspace.callers === null ? undefined : callerOf(received, workspace.callers, separated);
  callRecord.caller = byCaller;
  const repeatKey = repeatKeyOf({ call, caller, route, body, fields, labelKey, account: quota });
  const begins = prefersReservation(fields.get('prefer'));
  // SDKs repeat a call at the time that they are told, but bring no ticket: it is known as a repeat.
  const ownName = begins && repeatKey !== null ? ticketId(repeatKey.name) : null;
  const repeated = repeatKey?.marker === 'first' ? null : ownName;
  const returning = readTicket(fields.get('sluice-ticket'), lane, labelKey) ?? repeated;
  const isReserving = begins || returning !== null;
  const plain = {
    ticket: ticketId(call.id),
    bucket,
    setting,
    lane,
    weight,
    maxInFlight,
    perMinute,
    ceilingTag,
    maxQueued,
    urgency,
    callClass: description.callClass,
    costs: costsOf(description, guess, estimates),
    document: costKey === null ? null : digest(labelKey, 'document', upstream.name, costKey),
  };
  // Objects are copied for those calls only that have a caller or a reservation.
  const admission =
    byCaller === undefined && returning === null
      ? plain
      : {
          ...plain,
          ...(byCaller === undefined ? {} : { caller: byCaller }),
          ...(returning === null ? {} : { reservation: returning }),
        };
  const asked: AdmissionRequest = {
    admission,
    arrivedAt: arrivalOf(call, body),
    ceiling: ceilingUnder(ceilingOf(workspace, upstream, labelKey).key, settings),
    mode,
    yielded,
    workspaceId: workspace.id,
    subject: {
      upstream: upstream.name,
      credential: quota,
      bucket: own,
      host: route.host,
      model: description.model,
      operation,
    },
    maxWaitIfAskedMs: maxWaitMsOf({ ...patience, preferSeconds: limits.maxWaitCeilingSeconds }, limits),
    maxWaitMs,
    stillValid: caller.stillValid,
  };
  const named = ownName === null ? null : { name: ownName };
  const request = isReserving
    ? { ...asked, reserving: { ...reservingOf(upstream, lane, labelKey), begins, ...named } }
    : asked;
  const replacedFields = repeatKey?.marker === 'key' ? replacedIn(received, fields) : null;
  const ownQuota: OwnQuota = {
    bucket: own,
    parts: { ...shares, shop: route.host },
    named:
      form === null
        ? null
        : {
            form,
            isOfForm: hasOwnBucket && quotaName === null,
            bucketOf: (named) => bucketKey(`${log}.${name('bucket', ...names, 'name', named)}`),
          },
  };
  const known = { description, request, asksForWait, ownQuota, guess, repeatKey, replacedFields };
  return { call, caller, route, body, callRecord, pools, egress, ...known };
}

/** Who of the workspace makes the call; `undefined` = it names nobody. */
function callerOf(
  { caller: { workspace, key }, run }: Received,
  by: CallerPart,
  separated: SeparatedCall,
): CallerKey | undefined {
  const [text = ''] = by.kind === 'key' ? [key.sha256] : separatorsOf([by], separated);
  if (text === '') return undefined;
  return callerKey(`c_${nameOf(run.settings.privacy.labelKey, 'caller', [workspace.id, text]).slice(0, 16)}`);
}

/** What is kept of the call if it is refused for its wait. */
const reservingOf = (
  { limits }: UpstreamSettings,
  lane: LaneKey,
  labelKey: string,
): Omit<AdmissionRequest['reserving'] & {}, 'begins'> => ({
  lastsMs: limits.reserveSeconds * 1_000,
  maxReserved: limits.maxReserved,
  ticketOf: (id) => writeTicket(id, lane, labelKey),
});

/** The keys of a call whose credential serves other workspaces, too, as they go upstream. */
function replacedIn(
  { caller, route, run }: Received,
  fields: ReadonlyMap<string, string>,
): Prepared['replacedFields'] {
  const { credential } = route;
  if (credential === null || !run.isShared(credential.quota)) return null;
  // A key has to be the same after a restart, because the upstream may have run the call before it; a generated label key is not.
  const { labelKey, labelKeyGenerated } = run.settings.privacy;
  const secret = labelKeyGenerated ? credential.quota : labelKey;
  return keysOfSharedCredential({ fields, route }, caller.workspace.id, secret);
}

const nothing: readonly string[] = [];

/** The lane of a workspace in a bucket. */
export const laneOf = (bucket: BucketKey, workspaceId: string, labelKey: string): LaneKey =>
  laneKey(nameOf(labelKey, 'lane', [bucket, workspaceId]));

function withoutQuery(pathAndQuery: string): string {
  const at = pathAndQuery.indexOf('?');
  return at < 0 ? pathAndQuery : pathAndQuery.slice(0, at);
}

/** A cache of names under the label key in use, because most calls are of a few workspaces and buckets. */
const names = new LRUCache<string, string>({ max: 20_000 });
const maxCachedName = 1_024;
let namesUnder = '';

function nameOf(labelKey: string, purpose: string, parts: readonly string[]): string {
  if (labelKey !== namesUnder) {
    names.clear();
    namesUnder = labelKey;
  }
  // With lengths, so that no two lists of parts are written alike.
  let known = purpose;
  for (const part of parts) known += ` ${part.length}:${part}`;
  // A part may be a member of a body, as long as the body.
  if (known.length > maxCachedName) return digest(labelKey, purpose, ...parts);
  let name = names.get(known);
  if (name === undefined) names.set(known, (name = digest(labelKey, purpose, ...parts)));
  return name;
}

/** The ceiling of a workspace on an upstream. */
export function ceilingOf(
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
  labelKey: string,
): CeilingRef {
  const { perMinute, perDay } = ceilingLimits(workspace, upstream);
  return { key: ceilingKey(nameOf(labelKey, 'ceiling', [upstream.name, workspace.id])), perMinute, perDay };
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
