/**
 * READ FIRST. Builds every part and tells the whole journey of a call in `handle`:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → answer
 *
 * Owns: the order of the stages and what they hand each other. Refuses to own: any decision inside a stage.
 * Invariants: every resend goes through admission again; a lease is settled exactly once on every path; a ticket always
 * leaves; the API key never reaches an upstream.
 */
import { Buffer } from 'node:buffer';
import { createDesk, type Desk } from './admission/admit.ts';
import { createJoins } from './admission/join.ts';
import type { Lease, Ticket } from './admission/ticket.ts';
import { authenticate, injectedFields, type AuthenticatedCaller } from './auth/authenticate.ts';
import { FailedAttempts } from './auth/failed-attempts.ts';
import { Keyring } from './auth/keyring.ts';
import type { AdmissionRecord, AnswerEnd, Call, Feedback, Outcome } from './call.ts';
import type { Clock, Random } from './clock.ts';
import type { Settings } from './config/settings.ts';
import type { Resolve } from './dispatch/agents.ts';
import type { AttemptResult } from './dispatch/attempt.ts';
import { createDispatcher, pseudonym } from './dispatch/dispatcher.ts';
import { readAhead } from './dispatch/inspect.ts';
import { LearnedCosts } from './dispatch/learned-costs.ts';
import { resend, type ResendDecision, type ResendHistory } from './dispatch/resend.policy.ts';
import type { TransportError } from './dispatch/transport-error.ts';
import { Refusal } from './errors.ts';
import { answerOutcome, failureRefusal, rateLimitOf, type Answered } from './journey/answer.ts';
import { ceilingOf, prepare, type Prepared } from './journey/prepare.ts';
import type { CeilingState } from './limiter/ceilings.ts';
import type { Lesson, Settlement } from './limiter/limiter.ts';
import { createStores } from './limiter/stores.ts';
import { createLastBuckets } from './activity/last-buckets.ts';
import { nextSlotMs } from './activity/next-slot.policy.ts';
import type { CeilingsNow } from './page/observation.ts';
import { createRouteFinder } from './target/route.ts';
import type { CallTelemetry, ObservedBucket, Telemetry } from './telemetry/events.ts';
import { outcomeOfAnswer, outcomeOfRefusal, type CallOutcome } from './telemetry/outcome.policy.ts';

export interface GatewayParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
}

export interface Gateway {
  /** The journey of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  handle(call: Call): Promise<Outcome>;
  /** Names the caller of a request that is not sent anywhere (`/activity`). */
  identify(call: Call): Promise<AuthenticatedCaller>;
  /** Fields in which API keys may come, lower case. */
  credentialFields(): ReadonlySet<string>;
  /** Takes over new settings at once; waiting calls whose key is gone are refused. */
  reconfigure(settings: Settings): void;
  /** Refuses calls that wait and cannot leave within `budgetMs`; the others go on. */
  drain(budgetMs: number): void;
  /** Ceilings of a workspace on an upstream, as they are now. */
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
  /** Buckets touched by this replica, with their upstreams. */
  buckets(): readonly ObservedBucket[];
  /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
  ready(): Promise<void>;
  close(): Promise<void>;
}

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

/** How long a throttle inside a stream that names no time closes its bucket, milliseconds. */
const lateThrottleMs = 1_000;

/** A call that met a stale connection may wait this long for its second grant, whatever is left of its wait. Milliseconds. */
const staleGraceMs = 1_000;

/** Names of buckets kept for the gauges. */
const maxBucketNames = 10_000;

export function createGateway({ settings: first, clock, random, telemetry, resolve }: GatewayParts): Gateway {
  let settings = first;
  let routes = createRouteFinder(settings.upstreams, pseudonym);
  let injected = injectedFields(settings);
  const keyring = new Keyring(settings, clock);
  const failedAttempts = new FailedAttempts();
  const dispatcher = createDispatcher(settings, clock, resolve);
  const learned = new LearnedCosts();
  const joins = createJoins();
  const upstreamOf = new Map<string, string>();
  const stores = createStores({
    settings,
    clock,
    random,
    telemetry,
    listener: {
      onGrant: (grant) => desk.listener.onGrant(grant),
      onClosed: (bucket, closedMs) => desk.listener.onClosed(bucket, closedMs),
    },
  });
  const { limiter, ceilings } = stores;
  const lastBuckets = createLastBuckets(clock, () => limiter.snapshot());
  const desk: Desk = createDesk({
    clock,
    limiter: () => limiter,
    ceilings,
    onFailure: (failure) => telemetry.log.bug('a limiter operation failed', failure),
  });
  telemetry.configured(settings.upstreams.values());

  const identify = async (call: Call): Promise<AuthenticatedCaller> => {
    try {
      return authenticate(call.rawFields, keyring, injected);
    } catch (refusal) {
      if (!(refusal instanceof Refusal) || refusal.code !== 'unauthenticated') throw refusal;
      throw await failedAttempts.refusal(call.source);
    }
  };

  const handle = async (call: Call): Promise<Outcome> => {
    const followed = telemetry.begin(call);
    try {
      const caller = await identify(call);
      followed.identified(caller);
      const route = routes.find(call, caller);
      followed.routed(route.upstream);
      const body = await call.readBody();
      const prepared = prepare({ call, caller, route, body, learned, labelKey: settings.privacy.labelKey });
      remember(prepared);
      followed.admitting(prepared.entry.admission.lane);
      const outcome = await joins.run(prepared.joinKey, call.clientGone, (nobodyLeft) =>
        journey(prepared, nobodyLeft, followed),
      );
      return followedToItsEnd(outcome, followed);
    } catch (failure) {
      tellFailure(call, followed, failure);
      throw failure;
    }
  };

  /** Self-fence: this process noticed its grant too late, somebody else may hold the lane by now. Not sent. */
  const comeAgain = (lease: Lease): void => {
    telemetry.leaseLost('stalled');
    lease.settle({ kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 0 }, null);
  };

  /** From the lane to the answer. `nobodyLeft` ends it: no client waits for the answer any more. */
  const journey = async (
    prepared: Prepared,
    nobodyLeft: AbortSignal,
    followed: CallTelemetry,
  ): Promise<Outcome> => {
    let ticket: Ticket | null = null;
    let absorbed = 0;
    let attempts = 0;
    let history: ResendHistory = {};
    const record = (): AdmissionRecord => ({ waitedMs: ticket?.waitedMs() ?? 0, attempts, absorbed });
    try {
      ticket = await desk.enter({ ...prepared.entry, clientGone: nobodyLeft });
      for (;;) {
        followed.queued(prepared.entry.admission.lane);
        const lease = await ticket.granted();
        if (!lease.holds()) {
          comeAgain(lease);
          continue;
        }
        followed.granted();
        attempts += 1;
        const result = await send(prepared, lease, nobodyLeft, followed);
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = nobodyLeft.aborted ? 0 : ticket.remainingMs();
        const decision = judge(prepared, result, { attempts, history, remainingMs });
        if (decision.kind === 'pass') {
          if (result.kind === 'failed') throw giveUp(prepared, lease, result, decision, followed);
          return passOn(prepared, lease, result, decision, record());
        }
        history = decision.history;
        if (decision.cause === 'stale') ticket.lengthen(staleGraceMs);
        absorbed += reAdmit(lease, result, decision, followed);
      }
    } catch (failure) {
      const rateLimit = rateLimitOf(await ceilings.state(prepared.entry.ceiling));
      prepared.call.tell({ record: record(), rateLimit });
      throw failure;
    } finally {
      ticket?.leave();
    }
  };

  const send = async (
    { call, caller, route, body, description, entry, documentCost }: Prepared,
    lease: Lease,
    signal: AbortSignal,
    followed: CallTelemetry,
  ): Promise<AttemptResult> => {
    followed.sent();
    const { keyFields } = caller;
    const traceparent = followed.traceparent();
    const { lane } = entry.admission;
    const result = await dispatcher
      .send({ call, route, description, body: body.bytes, keyFields, traceparent, lane, signal })
      .catch((bug: unknown) => {
        lease.settle({ kind: 'unknown' }, null);
        throw bug;
      });
    if (result.kind === 'failed') return result;
    followed.answered(result.head.status, result.feedback.throttle);
    const { requestedCost } = result.feedback;
    if (requestedCost !== undefined) documentCost?.tell(requestedCost);
    return result;
  };

  /** The final attempt broke: the lease ends as far as its fate is known, the client is told. */
  const giveUp = (
    { description }: Prepared,
    lease: Lease,
    { error }: Extract<AttemptResult, { kind: 'failed' }>,
    decision: Extract<ResendDecision, { kind: 'pass' }>,
    followed: CallTelemetry,
  ): Refusal => {
    if (error.neverSent) lease.settle({ kind: 'dropped' }, null);
    else if (description.safe) lease.settle({ kind: 'succeeded', spent: null }, null);
    else lease.settle({ kind: 'unknown' }, null);
    const refusal = failureRefusal(error, decision.shouldRetry !== false);
    followed.attemptFailed(error.kind === 'aborted' ? 'client_gone' : refusal.code);
    return refusal;
  };

  /**
   * The answer is final. An uncapped lane's lease ends with the answer's head; a capped lane's with the last byte the
   * upstream sends, however slowly the client reads; that of an event stream, which may yet turn into a throttle, with
   * the answer.
   */
  const passOn = (
    { call, route, entry }: Prepared,
    lease: Lease,
    answered: Answered,
    { closes, closeMs, shouldRetry }: Extract<ResendDecision, { kind: 'pass' }>,
    record: AdmissionRecord,
  ): Outcome => {
    let { body } = answered;
    const done = (): void => lease.settle({ kind: 'succeeded', spent: spentOf(answered) }, null);
    if (closeMs > 0 && closes === 'bucket') {
      lease.settle({ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, answered.lesson());
    } else if (!Buffer.isBuffer(body) && entry.admission.maxInFlight !== null) {
      lease.learn(answered.lesson());
      body = readAhead(body, done);
    } else if (answered.onLateThrottle !== null) {
      lease.learn(answered.lesson());
      answered.onLateThrottle((told) => lease.settle(...lateThrottle(told, answered)));
    } else {
      lease.settle({ kind: 'succeeded', spent: spentOf(answered) }, answered.lesson());
    }
    return answerOutcome({
      answered: { ...answered, body },
      route,
      call,
      record,
      rateLimit: rateLimitOf(lease.ceiling),
      shouldRetry,
      viaPrefix: (url) => routes.viaPrefix(route.upstream, url),
      onEnd: done,
    });
  };

  const followedToItsEnd = (outcome: Outcome, followed: CallTelemetry): Outcome => ({
    ...outcome,
    onEnd: (how) => {
      outcome.onEnd(how);
      followed.ended({
        outcome: outcomeOf(how, outcome),
        status: outcome.status,
        code: null,
        admission: outcome.record,
      });
    },
  });

  const remember = ({ entry }: Prepared): void => {
    if (upstreamOf.size >= maxBucketNames) upstreamOf.clear();
    upstreamOf.set(entry.admission.bucket, entry.upstream);
    lastBuckets.used(entry.ceiling.key, entry.admission.bucket);
  };

  let cancelRecheck = (): void => {};
  const recheckLater = (): void => {
    cancelRecheck = clock.after(recheckMs, () => {
      desk.recheckKeys();
      recheckLater();
    });
  };
  recheckLater();

  return {
    handle,
    identify,
    credentialFields: () => injected,
    reconfigure(next) {
      settings = next;
      routes = createRouteFinder(next.upstreams, pseudonym);
      injected = injectedFields(next);
      keyring.replace(next);
      dispatcher.configure(next);
      telemetry.configured(next.upstreams.values());
      desk.recheckKeys();
    },
    drain: (budgetMs) => desk.drain(budgetMs),
    async ceilings(workspaceId, upstreamName) {
      const workspace = settings.workspaces.get(workspaceId);
      const upstream = settings.upstreams.get(upstreamName);
      if (workspace === undefined || upstream === undefined) return noCeilings;
      const ceiling = ceilingOf(workspace, upstream, settings.privacy.labelKey);
      const [perMinute, perDay] = await Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]);
      const [ceilingMs = null] = await ceilings.forecast(ceiling, [desk.waitingUnder(ceiling.key) + 1]);
      return {
        perMinute: shown(perMinute),
        perDay: shown(perDay),
        nextSlotMs: nextSlotMs(ceilingMs, lastBuckets.of(ceiling.key)),
      };
    },
    buckets: () =>
      limiter.snapshot().map((snapshot) => ({
        upstream: upstreamOf.get(snapshot.bucket) ?? 'none',
        snapshot,
      })),
    ready: () => stores.ready(),
    async close() {
      cancelRecheck();
      dispatcher.close();
      await stores.close();
    },
  };
}

const noCeilings: CeilingsNow = { perMinute: null, perDay: null, nextSlotMs: null };

const shown = (state: CeilingState | null): CeilingsNow['perMinute'] =>
  state === null ? null : { limit: state.limit, remaining: state.remaining, resetMs: state.nextPlaceMs };

/** An answer that the upstream broke off is no success, whatever its head said. */
function outcomeOf(how: AnswerEnd, { status, throttled }: Outcome): CallOutcome {
  if (how === 'client_gone') return how;
  return how === 'upstream_cut' ? 'failed' : outcomeOfAnswer(status, throttled);
}

/** What the resend policy makes of an attempt. */
function judge(
  { route, body, description }: Prepared,
  result: AttemptResult,
  soFar: { readonly attempts: number; readonly history: ResendHistory; readonly remainingMs: number },
): ResendDecision {
  return resend({
    kind: route.upstream.kind,
    call: { ...description, replayable: body.replayable },
    outcome:
      result.kind === 'answered'
        ? { kind: 'answered', status: result.head.status, throttle: result.feedback.throttle }
        : { kind: fateOf(result.error) },
    ...soFar,
  });
}

function fateOf({ neverSent, stale }: TransportError): 'never_sent' | 'stale' | 'fate_unknown' {
  if (neverSent) return 'never_sent';
  return stale ? 'stale' : 'fate_unknown';
}

/** Back into the lane, at the same place. Returns how many throttled answers that absorbed. */
function reAdmit(
  lease: Lease,
  result: AttemptResult,
  decision: Extract<ResendDecision, { kind: 'resend' }>,
  followed: CallTelemetry,
): number {
  const closeMs = decision.closes === 'bucket' ? decision.notBeforeMs : 0;
  const sleepMs = decision.closes === 'bucket' ? 0 : decision.notBeforeMs;
  const lesson = result.kind === 'answered' ? result.lesson() : null;
  lease.settle({ kind: 'throttled', closeMs, requeue: true, sleepMs }, lesson);
  if (result.kind === 'failed') {
    followed.attemptFailed('reset');
    return 0;
  }
  if (!Buffer.isBuffer(result.body)) result.body.destroy();
  if (result.feedback.throttle === null) {
    followed.attemptFailed('reset');
    return 0;
  }
  followed.absorbed();
  return 1;
}

/** Final charge of a call where the upstream told it: GraphQL refunds what was not used. */
function spentOf(answered: Answered): { readonly cost: number } | null {
  const { actualCost } = answered.late() ?? answered.feedback;
  return actualCost === undefined || actualCost === null ? null : { cost: actualCost };
}

/** A stream that turned into a throttle closes the bucket for everybody; its own client has seen the event. */
function lateThrottle(told: Feedback, answered: Answered): [Settlement, Lesson] {
  const closeMs = told.throttle?.waitMs ?? lateThrottleMs;
  const lesson = { ...answered.lesson(), feedback: told };
  return [{ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, lesson];
}

function tellFailure(call: Call, followed: CallTelemetry, failure: unknown): void {
  if (call.clientGone.aborted) {
    followed.ended({ outcome: 'client_gone', status: 0, code: null });
  } else if (failure instanceof Refusal) {
    const { code } = failure;
    followed.ended({ outcome: outcomeOfRefusal(code), status: failure.status, code });
  } else {
    followed.ended({ outcome: 'failed', status: 500, code: null });
  }
}
