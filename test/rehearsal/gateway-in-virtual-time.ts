/** The gateway of one process in virtual time: all but its sockets is the product's. Its upstreams count, state and refuse as their kind does. */
import { Readable } from 'node:stream';
import type { Call, UpstreamResponse } from '../../src/call.ts';
import { createKey } from '../../src/cli/keys.ts';
import { systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { attempt, type Dispatcher, type Sending } from '../../src/dispatch/dispatcher.ts';
import { Refusal } from '../../src/errors.ts';
import { createGateway } from '../../src/gateway.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { Pipeline } from '../../src/pipeline.ts';
import { createRecorder, type Recorder } from '../../src/recording/recorder.ts';
import { createTelemetry } from '../../src/telemetry/telemetry.ts';
import { FakeClock } from '../support/fake-clock.ts';

export interface Arrival {
  readonly at: number;
  readonly workspace: string;
  readonly serviceMs: number;
  /** What it asks for, and takes in the end, of a language model. */
  readonly tokens?: { readonly asked: number; readonly taken: number };
  readonly fields?: Readonly<Record<string, string>>;
  /** Its client comes back with the ticket that a refusal gives it, at the time that it is told. */
  readonly comesBack?: boolean;
}

/** `limit` units, draining in `windowMs`. */
type Quota = Record<'limit' | 'windowMs', number>;
/** Of all credentials together. Absent: it lets everything through, and states nothing. */
interface UpstreamQuota {
  readonly requests?: Quota;
  readonly tokens?: Quota;
  /** It counts this share of the tokens that a call asks for, however few it takes. */
  readonly countsOfAsked?: number;
  /** Its responses name who has the quota. */
  readonly organization?: string;
  /** It refuses whatever comes between these times, milliseconds. */
  readonly closed?: { readonly from: number; readonly until: number };
}

export interface Scene {
  /** What the configuration says of the upstream, and of each workspace beside its keys: YAML flow style. */
  readonly api: string;
  readonly workspaces: Readonly<Record<string, string>>;
  readonly quota: UpstreamQuota;
}

const labelKey = 'a label key for tests only';
/** One for each workspace. */
const keys: Readonly<Record<string, ReturnType<typeof createKey>>> = {
  acme: createKey(),
  bell: createKey(),
  cobalt: createKey(),
};

export function settingsOf({ api, workspaces }: Scene): Settings {
  const of = Object.entries(workspaces).map(
    ([name, more]) => `${name}: { keys: [{ hash: "${keys[name]?.hash}" }], ${more} }`,
  );
  const text = `privacy: { labelKey: "${labelKey}" }
upstreams: { api: { origins: ["https://api.example.com"], ${api} } }
workspaces: { ${of.join(', ')} }`;
  return parseSettings(text, { path: 'test.yaml', env: {} });
}

/** Plays all arrivals to their ends. Resolves with the recording of them. */
export async function playAtGateway(scene: Scene, arrivals: readonly Arrival[]): Promise<string> {
  const clock = new FakeClock();
  const settings = settingsOf(scene);
  const destination = { write: () => {} };
  const telemetry = createTelemetry(settings, { clock, random: systemRandom, destination });
  const recorder = createRecorder({
    clock,
    settings: () => settings,
    labelOf: (workspace) => workspaceLabel(labelKey, workspace),
    buckets: () => parts.pressure.buckets(),
  });
  const { parts } = createGateway({ settings, clock, random: systemRandom, telemetry, recorder });
  const upstream = new CountingUpstream(clock, scene.quota);
  const dispatcher: unknown = { send: (sending: Sending) => sendTo(upstream, sending, clock) };
  const pipeline = new Pipeline({ ...parts, dispatcher: dispatcher as Dispatcher });
  const recording = await record(recorder);
  let open = arrivals.length;
  const bugs: unknown[] = [];
  for (const arrival of arrivals)
    clock.arrives(arrival.at, () => {
      play(pipeline, clock, arrival)
        .then(() => (open -= 1))
        .catch((bug: unknown) => bugs.push(bug));
    });
  await clock.run(10 * 600_000, () => {
    if (open === bugs.length) clock.halt();
  });
  if (open > 0) throw new Error(`${open} calls have not ended`, { cause: bugs[0] });
  await parts.stores.close();
  return recording();
}

async function record(recorder: Recorder): Promise<() => string> {
  const lines: string[] = [];
  const nothing = (): void => {};
  const response = {
    writableLength: 0,
    set: () => response,
    on: () => response,
    write: (line: string) => lines.push(line),
    flushHeaders: nothing,
    end: nothing,
    destroy: nothing,
  };
  const request = { url: '/recording?seconds=600' };
  void recorder.open(request as never, response as never);
  return () => lines.join('');
}

/** Of `hello`, as providers count a prompt that they do not read. */
const promptTokens = 5;

async function play(pipeline: Pipeline, clock: FakeClock, arrival: Arrival): Promise<void> {
  const { workspace, tokens, fields = {} } = arrival;
  const messages = [{ role: 'user', content: 'hello' }];
  const asking = JSON.stringify({ model: 'm', max_tokens: tokens?.asked, messages });
  const sent = {
    host: 'gateway',
    authorization: `Bearer ${keys[workspace]?.key}`,
    'content-type': 'application/json',
    'x-service-ms': String(arrival.serviceMs),
    'x-tokens': String(tokens?.taken ?? 0),
    'x-tokens-asked': String(tokens === undefined ? 0 : tokens.asked + promptTokens),
    ...fields,
  };
  const bytes = Buffer.from(tokens === undefined ? '' : asking);
  const call: Call = {
    id: systemRandom.hex(16),
    receivedAt: clock.monotonic(),
    method: tokens === undefined ? 'GET' : 'POST',
    form: 'via',
    rawUrl: '/via/api/v1/chat/completions',
    rawFields: Object.entries(sent).flat(),
    clientGone: new AbortController().signal,
    readBody: () => Promise.resolve({ bytes, replayable: true, completeAt: null }),
    authenticated: () => {},
    report: () => {},
    retain: () => () => {},
  };
  try {
    const outcome = await pipeline.handle(call);
    if (outcome.body !== null && !Buffer.isBuffer(outcome.body)) for await (const _ of outcome.body) continue;
    outcome.onEnd('complete');
  } catch (refusal) {
    if (!(refusal instanceof Refusal)) throw refusal;
    const { ticket, retryInMs = 0 } = refusal.details;
    if (ticket === undefined || arrival.comesBack !== true) return;
    await new Promise<void>((resolve) => clock.arrives(clock.monotonic() + retryInMs, resolve));
    await play(pipeline, clock, { ...arrival, fields: { ...fields, 'sluice-ticket': ticket } });
  }
}

/** The product's own attempt, over an upstream instead of sockets. */
function sendTo(upstream: CountingUpstream, sending: Sending, clock: FakeClock) {
  const { call, route, description } = sending.prepared;
  const number = (name: string): number => Number(call.rawFields[call.rawFields.indexOf(name) + 1]);
  const request = {
    kind: route.upstream.kind,
    dialect: route.upstream.dialect,
    callClass: description.callClass,
    method: call.method,
    pathAndQuery: route.pathAndQuery,
  };
  const send = (): Promise<UpstreamResponse> =>
    upstream.take(number('x-service-ms'), number('x-tokens'), number('x-tokens-asked'));
  return attempt({ send }, request as never, clock);
}

class CountingUpstream {
  readonly #clock: FakeClock;
  readonly #of: UpstreamQuota;
  readonly #meters: readonly { readonly name: 'requests' | 'tokens'; readonly quota: Quota; level: number }[];
  #at = 0;

  constructor(clock: FakeClock, of: UpstreamQuota) {
    this.#clock = clock;
    this.#of = of;
    this.#meters = (['requests', 'tokens'] as const).flatMap((name) => {
      const quota = of[name];
      return quota === undefined ? [] : { name, quota, level: 0 };
    });
  }

  async take(serviceMs: number, tokens: number, asked: number): Promise<UpstreamResponse> {
    const now = this.#clock.monotonic();
    const { countsOfAsked: share, closed = { from: 0, until: 0 } } = this.#of;
    const costs = { requests: 1, tokens: share === undefined ? tokens : share * asked };
    const waits = this.#meters.map((meter) => {
      const { limit, windowMs } = meter.quota;
      meter.level = Math.max(0, meter.level - ((now - this.#at) * limit) / windowMs);
      return ((meter.level + costs[meter.name] - limit) / limit) * windowMs;
    });
    this.#at = now;
    const waitMs = Math.max(0, now < closed.from ? 0 : closed.until - now, ...waits);
    if (waitMs > 1e-6)
      return response(429, [...this.#fields(), 'retry-after-ms', String(Math.ceil(waitMs))], {});
    for (const meter of this.#meters) meter.level += costs[meter.name];
    const fields = this.#fields();
    await new Promise<void>((resolve) => this.#clock.arrives(now + serviceMs, resolve));
    const usage = { prompt_tokens: 0, completion_tokens: tokens, total_tokens: tokens };
    return response(200, fields, tokens === 0 ? {} : { usage });
  }

  /** It states each quota; a shop states calls in its bucket. */
  #fields(): string[] {
    const { organization } = this.#of;
    const stated = this.#meters.flatMap(({ name, quota: { limit, windowMs }, level }) =>
      Object.entries({
        [`x-ratelimit-limit-${name}`]: String(limit),
        [`x-ratelimit-remaining-${name}`]: String(Math.floor(limit - level)),
        [`x-ratelimit-reset-${name}`]: `${Math.ceil((level / limit) * windowMs)}ms`,
        ...(name === 'requests' && { 'x-shopify-shop-api-call-limit': `${Math.ceil(level)}/${limit}` }),
      }).flat(),
    );
    return [...(organization === undefined ? [] : ['openai-organization', organization]), ...stated];
  }
}

const response = (status: number, rawFields: readonly string[], body: object): UpstreamResponse =>
  ({
    head: { status, rawFields: ['content-type', 'application/json', ...rawFields] },
    body: Readable.from([Buffer.from(JSON.stringify(body))]),
  }) as UpstreamResponse;
