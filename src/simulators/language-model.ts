/**
 * A language-model API with real limits: OpenAI, Azure OpenAI, Groq or Anthropic by `dialect`.
 *
 * Owns: the order of the steps of a call and what `configure`, `reset`, `drain`, `fault` do.
 * Refuses to own: formats (texts, fields, bodies have their own files), bucket arithmetic (`bucket.ts`).
 * Invariant: decisions are made in the order in which bodies are complete, at one instant of the given clock,
 * and each is in the log.
 */
import type { Random } from '../clock.ts';
import { createControl, controlPrefix } from './control.ts';
import { FaultQueue, type Fault, type FaultKind, type FaultTarget } from './faults.ts';
import { numberOf, textOf, type Json } from './json.ts';
import type { LogEntry } from './log.ts';
import { accountsOf, keyOf, namesItself, type Account } from './language-model/accounts.ts';
import type { Admitted, Call } from './language-model/call.ts';
import { costOf, unitsOf, type Cost } from './language-model/cost.ts';
import { limitFields } from './language-model/fields.ts';
import { Meters, type Meter, type Verdict } from './language-model/meters.ts';
import {
  dimensions,
  settle,
  type Dimension,
  type LanguageModelOptions,
  type LanguageModelSettings,
  type QuotaState,
} from './language-model/options.ts';
import * as refusals from './language-model/refusals.ts';
import { bodyOf, placeOf } from './language-model/request.ts';
import { work } from './language-model/work.ts';
import { nonceIn, noFacts, Recorder, type ArrivalNote, type Facts } from './recorder.ts';
import { seededRandom } from './seeded-random.ts';
import { createHost, type Exchange, type Handler, type Listening } from './server.ts';

export type { LanguageModelOptions, LanguageModelSettings } from './language-model/options.ts';

/** Which bucket an outside consumer takes from; default: `rpm` of the first model in the first organisation. */
export interface LanguageModelDrain {
  readonly dimension?: Dimension;
  readonly model?: string;
  readonly org?: string;
  /** Take from the project's own bucket instead of the organisation's. */
  readonly project?: string;
}

export interface LanguageModelSimulator {
  /** Loopback; port 0 takes a free one. @throws the listen error. */
  listen(port?: number): Promise<Listening>;
  readonly log: readonly LogEntry[];
  state(): LanguageModelState;
  /** Empties buckets, log, faults; settings go back to the options of the start. */
  reset(): void;
  /** Changes settings from the next call on; levels stay. `models` and `orgs` are merged by name. */
  configure(options: Partial<LanguageModelSettings>): void;
  /** @throws Error on an unknown kind. */
  fault(fault: Fault): void;
  /** Someone else takes `units` now, never beyond the limit. @throws Error when no such bucket is limited. */
  drain(units: number, from?: LanguageModelDrain): void;
  /** Closes every socket; resolves when none is left. */
  close(): Promise<void>;
}

export interface LanguageModelState {
  readonly buckets: Readonly<Record<string, { readonly limit: number; readonly used: number }>>;
  readonly decisions: number;
  readonly faults: readonly Fault[];
  /** Errors of the simulator itself; must stay empty. */
  readonly failures: readonly string[];
}

const beforeLimits: ReadonlySet<FaultKind> = new Set<FaultKind>([
  'answer',
  'headers-minus-one',
  'retry-after-zero',
]);
const limitChange: ReadonlySet<FaultKind> = new Set<FaultKind>(['limit-change']);
const afterLimits: ReadonlySet<FaultKind> = new Set<FaultKind>([
  'no-ratelimit-headers',
  'clock-skew',
  'late-429',
  '500',
  '502-html',
  '503',
  'slow',
  'reset-before-response',
  'reset-mid-stream',
  'hang',
  'stream-error',
]);

export function createLanguageModelSimulator(options: LanguageModelOptions = {}): LanguageModelSimulator {
  return new Simulator(options);
}

class Simulator implements LanguageModelSimulator {
  readonly #initial: LanguageModelSettings;
  readonly #clock;
  readonly #seed: number;
  readonly #recorder: Recorder;
  readonly #faults = new FaultQueue();
  readonly #meters: Meters;
  readonly #host;
  #random: Random;
  #settings: LanguageModelSettings;
  #accounts: ReadonlyMap<string, Account>;

  constructor(options: LanguageModelOptions) {
    const { settings, fixed } = settle(options);
    this.#initial = settings;
    this.#settings = settings;
    this.#clock = fixed.clock;
    this.#seed = fixed.seed;
    this.#random = seededRandom(fixed.seed);
    this.#recorder = new Recorder(fixed.clock, fixed.logLimit, fixed.recordHeaders);
    this.#accounts = accountsOf(settings);
    this.#meters = new Meters(settings);
    const control = createControl({
      state: () => this.state(),
      entries: () => this.log,
      reset: () => this.reset(),
      // Untyped data enters here, from tests only.
      configure: (part) => this.configure(part as Partial<LanguageModelSettings>),
      drain: (part) => this.drain(numberOf(part['units']) ?? 0, drainOf(part)),
      fault: (fault) => this.fault(fault),
      faults: () => this.#faults.waiting,
      clearFaults: () => this.#faults.clear(),
    });
    const calls: Handler = {
      arrive: (arrival) =>
        this.#recorder.arrive(arrival, keyOf(arrival.request.headers, this.#settings.dialect)),
      handle: async (exchange, note) => await this.#handle(exchange, note as ArrivalNote),
      failed: (error) => this.#recorder.failed(error),
    };
    this.#host = createHost(fixed.clock, (path) => (path.startsWith(controlPrefix) ? control : calls));
  }

  async listen(port = 0): Promise<Listening> {
    return await this.#host.listen(port);
  }

  async close(): Promise<void> {
    await this.#host.close();
  }

  get log(): readonly LogEntry[] {
    return this.#recorder.log.entries;
  }

  state(): LanguageModelState {
    return {
      buckets: this.#meters.snapshot(this.#clock.monotonic()),
      decisions: this.log.length,
      faults: this.#faults.waiting,
      failures: this.#recorder.failures,
    };
  }

  reset(): void {
    this.#recorder.clear();
    this.#faults.clear();
    this.#meters.reset();
    this.#random = seededRandom(this.#seed);
    this.#use(this.#initial);
  }

  configure(options: Partial<LanguageModelSettings>): void {
    const { models, orgs } = this.#settings;
    this.#use({
      ...this.#settings,
      ...options,
      models: { ...models, ...options.models },
      orgs: { ...orgs, ...options.orgs },
    });
  }

  fault(fault: Fault): void {
    this.#faults.add(fault);
  }

  drain(units: number, from: LanguageModelDrain = {}): void {
    const now = this.#clock.monotonic();
    const model = from.model ?? Object.keys(this.#settings.models)[0] ?? '';
    const org = from.org ?? Object.keys(this.#settings.orgs)[0] ?? '';
    const project = from.project ?? Object.keys(this.#settings.orgs[org]?.projects ?? {})[0] ?? '';
    const owner = from.project === undefined ? 'org' : 'project';
    const meter = this.#meters
      .of({ org, project }, model, now)
      .find((one) => one.owner === owner && one.dimension === (from.dimension ?? 'rpm'));
    if (meter === undefined) throw new Error(`nothing is limited for ${JSON.stringify(from)}`);
    meter.bucket.takeUpTo(units, now);
  }

  #use(settings: LanguageModelSettings): void {
    this.#settings = settings;
    this.#accounts = accountsOf(settings);
    this.#meters.configure(settings);
  }

  async #handle(exchange: Exchange, note: ArrivalNote): Promise<void> {
    exchange.skewMs = this.#settings.clockSkewSeconds * 1000;
    const requestId = `req_${this.#random.hex(16)}`;
    const place = placeOf(exchange.method, exchange.path);
    const account = this.#accounts.get(note.key);
    if (account === undefined || !namesItself(exchange.request.headers, account)) {
      const text = 'Incorrect API key provided.';
      this.#reject(exchange, note, 'unauthenticated', requestId, [401, 'invalid_api_key', text]);
      return;
    }
    if (place.kind === 'models') {
      this.#models(exchange, note, place.id, requestId);
      return;
    }
    if (place.kind === 'unknown') {
      const text = `Invalid URL (${exchange.method} ${exchange.path})`;
      this.#reject(exchange, note, 'not-found', requestId, [404, 'unknown_url', text]);
      return;
    }
    const body = await bodyOf(exchange);
    if (body === undefined) {
      const text = 'We could not parse the JSON body of your request.';
      this.#reject(exchange, note, 'invalid', requestId, [400, 'invalid_json', text]);
      return;
    }
    const model = place.deployment === '' ? (textOf(body['model']) ?? '') : place.deployment;
    if (!Object.hasOwn(this.#settings.models, model)) {
      const text = `The model \`${model}\` does not exist or you do not have access to it.`;
      this.#reject(exchange, note, 'not-found', requestId, [404, 'model_not_found', text]);
      return;
    }
    this.#changeLimit({ key: note.key, model, store: '', path: exchange.path });
    const now = this.#clock.monotonic();
    const cost = costOf(place.endpoint, body, this.#settings);
    await this.#decide({
      exchange,
      note,
      endpoint: place.endpoint,
      body,
      account,
      model,
      family: this.#meters.familyOf(model),
      cost,
      meters: this.#meters.of(account, model, now),
      requestId,
    });
  }

  /** Steps 2 to 7: quota, overload, limits; one instant, no await before the charge. */
  async #decide(call: Call): Promise<void> {
    const { account, exchange, requestId } = call;
    const quota = this.#quota(account);
    if (quota !== 'ok') {
      this.#record(call, { decision: 'quota' });
      send(exchange, refusals.outOfQuota(quota, this.#settings, requestId));
      return;
    }
    const { overload } = this.#settings;
    if (overload !== null) {
      const entry = this.#record(call, { decision: 'overloaded' });
      const seconds = this.#settings.overloadRetryAfterSeconds;
      if (seconds !== null) this.#told(entry, seconds * 1000);
      send(exchange, refusals.overloaded(overload, this.#settings, requestId));
      return;
    }
    if (this.#struckBefore(call)) return;
    const t = this.#clock.monotonic();
    const usedBefore = this.#meters.levels(call.meters, t);
    const verdict = this.#meters.decide(call.meters, call.cost, t);
    const usedAfter = this.#meters.levels(call.meters, t);
    const metric = verdict.kind === 'admitted' ? '' : verdict.meter.dimension;
    const waitMs = verdict.kind === 'throttled' ? verdict.waitMs : 0;
    const facts = { decision: verdict.kind, usedBefore, usedAfter, metric, waitMs };
    const entry = this.#record(call, facts, verdict.kind === 'admitted');
    if (verdict.kind === 'admitted') await this.#work(call, entry, t);
    else this.#refuse(call, entry, verdict, t);
  }

  #refuse(call: Call, entry: LogEntry, verdict: Exclude<Verdict, { kind: 'admitted' }>, t: number): void {
    const { meter, requested } = verdict;
    const waitMs = verdict.kind === 'throttled' ? verdict.waitMs : 0;
    const refusal = {
      dialect: this.#settings.dialect,
      model: call.model,
      family: call.family,
      org: call.account.org,
      project: meter.owner === 'project' ? call.account.project : null,
      dimension: meter.dimension,
      limit: meter.bucket.limit,
      used: meter.bucket.limit - meter.bucket.remaining(t),
      requested,
      waitMs,
    };
    const limits = this.#limits(call, t);
    if (verdict.kind === 'too-large') {
      send(call.exchange, refusals.tooLarge(refusal, this.#settings, limits, call.requestId));
      return;
    }
    const answer = refusals.throttled(refusal, meter, this.#settings, limits, call.requestId);
    this.#told(entry, toldMs(answer.headers));
    send(call.exchange, answer);
  }

  async #work(call: Call, entry: LogEntry, t: number): Promise<void> {
    const fault = this.#faults.take(afterLimits, target(call));
    if (fault?.kind === 'clock-skew') call.exchange.skewMs = (fault.seconds ?? 0) * 1000;
    const limits = fault?.kind === 'no-ratelimit-headers' ? {} : this.#limits(call, t);
    const admitted: Admitted = { ...call, entry, headers: { ...this.#identity(call), ...limits } };
    await work(admitted, fault, { clock: this.#clock, random: this.#random, settings: this.#settings });
  }

  /** The `limit-change` fault: the model's limit is another one from this call on. */
  #changeLimit(call: FaultTarget): void {
    const fault = this.#faults.take(limitChange, call);
    if (fault === undefined) return;
    const changed = { ...this.#settings.models[call.model], [fault.dimension ?? 'rpm']: fault.limit ?? 1 };
    this.configure({ models: { [call.model]: changed } });
  }

  /** Faults that answer before any bucket is asked. */
  #struckBefore(call: Call): boolean {
    const fault = this.#faults.take(beforeLimits, target(call));
    if (fault === undefined) return false;
    const entry = this.#record(call, { decision: 'fault' });
    entry.fault = fault.kind;
    const answer = faultAnswer(fault);
    this.#told(entry, toldMs(answer.headers));
    send(call.exchange, answer);
    return true;
  }

  #quota(account: Account): QuotaState {
    const { quotaState } = this.#settings;
    const project = quotaState[account.project] ?? 'ok';
    return project === 'ok' ? (quotaState[account.org] ?? 'ok') : project;
  }

  #limits(call: Call, t: number): Record<string, string> {
    const at = this.#clock.now() + call.exchange.skewMs;
    return limitFields(call.meters, call.cost, this.#settings, { t, at });
  }

  #identity(call: Call): Record<string, string> {
    const own = refusals.ids(this.#settings, call.requestId);
    if (this.#settings.dialect === 'anthropic')
      return { ...own, 'anthropic-organization-id': call.account.org };
    if (this.#settings.dialect !== 'openai') return own;
    return {
      ...own,
      'openai-organization': call.account.org,
      'openai-project': call.account.project,
      'openai-processing-ms': String(this.#settings.latency.baseMs),
      'openai-version': '2020-10-01',
      ...(call.endpoint === 'embeddings' ? { 'openai-model': call.model } : {}),
    };
  }

  #models(exchange: Exchange, note: ArrivalNote, id: string | null, requestId: string): void {
    const all = Object.keys(this.#settings.models).map((name) => ({
      id: name,
      object: 'model',
      created: 1_700_000_000,
      owned_by: 'system',
    }));
    const body = id === null ? { object: 'list', data: all } : all.find((model) => model.id === id);
    if (body === undefined) {
      this.#reject(exchange, note, 'not-found', requestId, [404, 'model_not_found', 'No such model.']);
      return;
    }
    this.#recorder.record(exchange, note, { ...noFacts, decision: 'admitted', executed: true });
    send(exchange, { status: 200, headers: refusals.ids(this.#settings, requestId), body });
  }

  #reject(
    exchange: Exchange,
    note: ArrivalNote,
    decision: 'unauthenticated' | 'not-found' | 'invalid',
    requestId: string,
    [status, code, text]: [400 | 401 | 404, string, string],
  ): void {
    this.#recorder.record(exchange, note, { ...noFacts, decision });
    send(exchange, refusals.rejected(status, code, text, this.#settings, requestId));
  }

  #record(call: Call, facts: Partial<Facts> & Pick<Facts, 'decision'>, hashed = false): LogEntry {
    const scope = `${call.account.org}|${call.family}`;
    return this.#recorder.record(call.exchange, call.note, {
      ...noFacts,
      bucket: scope,
      scope,
      model: call.model,
      cost: costByDimension(call.cost, call.meters),
      nonce: nonceIn(call.body),
      executed: hashed,
      ...facts,
    });
  }

  #told(entry: LogEntry, waitMs: number): void {
    if (waitMs > 0) this.#recorder.retryAfters.sent(entry.bucket, waitMs, this.#clock.monotonic());
  }
}

function send(exchange: Exchange, { status, headers, body }: refusals.Answer): void {
  const text = typeof body === 'string' ? body : JSON.stringify(body ?? '');
  exchange.reply(status, { 'content-type': 'application/json', ...headers }, text);
}

function target(call: Call): { key: string; model: string; store: string; path: string } {
  return { key: call.note.key, model: call.model, store: '', path: call.exchange.path };
}

function costByDimension(cost: Cost, meters: readonly Meter[]): Record<string, number> {
  const units: Record<string, number> = { requests: 1, tokens: cost.tokens };
  for (const { dimension } of meters) units[dimension] = unitsOf(dimension, cost);
  return units;
}

/** What the answer told the caller to wait, by the more precise field. */
function toldMs(headers: refusals.Answer['headers']): number {
  const ms = numberOf(headers['retry-after-ms']) ?? 0;
  return ms > 0 ? ms : (numberOf(headers['retry-after']) ?? 0) * 1000;
}

/** U21 (limits of -1, no hint) and U19 (empty token bucket that claims to be full at once). */
function faultAnswer(fault: Fault): refusals.Answer {
  const message = 'Rate limit is exceeded. Try again later.';
  const body = { error: { code: '429', message } };
  if (fault.kind === 'headers-minus-one') {
    const minus = { 'x-ratelimit-limit-tokens': '-1', 'x-ratelimit-remaining-tokens': '-1' };
    return { status: 429, headers: { ...minus, 'x-ratelimit-reset-tokens': '0' }, body };
  }
  if (fault.kind === 'retry-after-zero') {
    const headers = {
      'retry-after': '1',
      'retry-after-ms': '0',
      'x-ratelimit-limit-requests': '5',
      'x-ratelimit-limit-tokens': '5000',
      'x-ratelimit-remaining-requests': '4',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-renewalperiod-requests': '60',
      'x-ratelimit-renewalperiod-tokens': '60',
      'x-ratelimit-reset-requests': '12',
      'x-ratelimit-reset-tokens': '0',
      'x-ratelimit-type': 'Tokens',
    };
    return { status: 429, headers, body };
  }
  return { status: fault.status ?? 200, headers: fault.headers ?? {}, body: fault.body ?? '' };
}

function drainOf(part: Json): LanguageModelDrain {
  const { model, org, project } = {
    model: textOf(part['model']),
    org: textOf(part['org']),
    project: textOf(part['project']),
  };
  const dimension = dimensions.find((name) => name === part['dimension']);
  return {
    ...(model === undefined ? {} : { model }),
    ...(org === undefined ? {} : { org }),
    ...(project === undefined ? {} : { project }),
    ...(dimension === undefined ? {} : { dimension }),
  };
}
