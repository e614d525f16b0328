/**
 * An upstream that enforces any described dialect (`speaks`): its windows, fields, refusals, quotas and penalties.
 *
 * With the field `x-sim` a client asks for a refusal: `permanent` or `expired`. Owns: which quota a call belongs to, the log. Does
 * not own: counting (`dialect/quota.ts`), the form of responses (`dialect/response-fields.ts`).
 */
import { systemClock, type Clock } from './clock.ts';
import type { SpokenCondition, SpokenParts } from './dialect/parts.ts';
import { Quota } from './dialect/quota.ts';
import { reportedFields, refusalBy, type Refusal } from './dialect/response-fields.ts';
import type { Exchange } from './exchange.ts';
import { objectOf, parseJson, textOf } from './json.ts';
import { Host, type Listening } from './server.ts';

export type { SpokenParts } from './dialect/parts.ts';

export interface DialectOptions {
  readonly speaks: SpokenParts;
  readonly clock?: Clock;
  /** Index of the form in `throttledBy` that its refusals have; default: a plain 429. */
  readonly refusesBy?: number;
  /** Whether refusals have `Retry-After`. Default: true, unless a field states the reset or the dialect has a penalty. */
  readonly retryAfter?: boolean;
  /** How long each call takes, milliseconds; default 0. */
  readonly tookMs?: number;
  /** The name that responses give to the quota of a path, where `bucketBy` has the field for it. */
  readonly nameOf?: (path: string) => string;
}

export interface DialectEntry {
  /** Milliseconds since the epoch. */
  readonly at: number;
  readonly quota: string;
  readonly path: string;
  readonly credential: string;
  readonly kind: 'admitted' | 'throttled' | 'permanent' | 'expired';
}

/** An upstream that speaks a described dialect, with as many quotas as its calls distinguish. */
export class DialectSimulator {
  readonly log: DialectEntry[] = [];
  /** Errors of the simulator itself. */
  readonly failures: unknown[] = [];
  readonly #options: DialectOptions;
  readonly #clock: Clock;
  readonly #host: Host;
  readonly #quotas = new Map<string, Quota>();
  /** Milliseconds since the Unix epoch; `null` = it was never closed. */
  #closedUntil: number | null = null;

  constructor(options: DialectOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#host = new Host(this.#clock, () => ({
      arrive: () => undefined,
      handle: (exchange) => this.#respond(exchange),
      failed: (error) => void this.failures.push(error),
    }));
  }

  /** @throws the listen error, e.g. port taken. */
  listen(port = 0): Promise<Listening> {
    return this.#host.listen(port);
  }

  close(): Promise<void> {
    return this.#host.close();
  }

  /** Every quota, also one that is first used later, refuses for `ms` milliseconds. */
  closeFor(ms: number): void {
    const until = this.#clock.now() + ms;
    this.#closedUntil = until;
    for (const quota of this.#quotas.values()) quota.close(until);
  }

  #quotaOf(name: string): Quota {
    const known = this.#quotas.get(name);
    if (known !== undefined) return known;
    const quota = new Quota(this.#options.speaks);
    this.#quotas.set(name, quota);
    if (this.#closedUntil !== null) quota.close(this.#closedUntil);
    return quota;
  }

  #throttled(waitMs: number): Refusal {
    const { speaks, refusesBy, retryAfter } = this.#options;
    const by = refusesBy === undefined ? undefined : speaks.throttledBy?.[refusesBy];
    const refusal = refusalBy(by ?? { status: 429 });
    const isTimed = retryAfter ?? !statesTime(speaks, by);
    if (!isTimed) return refusal;
    return { ...refusal, fields: { ...refusal.fields, 'retry-after': String(Math.ceil(waitMs / 1000)) } };
  }

  async #respond(exchange: Exchange): Promise<void> {
    const { speaks, tookMs = 0, nameOf = () => '' } = this.#options;
    const now = this.#clock.now();
    const by = speaks.bucketBy ?? ['credential'];
    const given = nameOf(exchange.path);
    const name = `${quotaName(by, exchange)} ${given}`;
    const note = (kind: DialectEntry['kind']): void => {
      const credential = exchange.request.headers.authorization ?? '';
      this.log.push({ at: now, quota: name, path: exchange.path, credential, kind });
    };
    const reply = ({ status, fields, body }: Refusal, reported: Record<string, string>): void =>
      exchange.reply(status, { 'content-type': 'application/json', ...reported, ...fields }, body);
    const demanded = demandedRefusal(speaks, exchange);
    if (demanded !== null) {
      note(demanded.kind);
      return reply(refusalBy(demanded.condition), {});
    }
    const quota = this.#quotaOf(name);
    const verdict = quota.ask(now);
    const naming = by.filter((part) => part.startsWith('answer:')).map((part) => [part.slice(7), given]);
    const reported = {
      ...reportedFields(speaks, quota.windows(now), now),
      ...(Object.fromEntries(naming) as Record<string, string>),
    };
    if (verdict.kind === 'refused') {
      note('throttled');
      return reply(this.#throttled(verdict.waitMs), reported);
    }
    note('admitted');
    void exchange.over.then(() => quota.done());
    await exchange.sleep(tookMs);
    reply({ status: 200, fields: {}, body: JSON.stringify({ path: exchange.path }) }, reported);
  }
}

/** The refusal that the client asks for; `null` = none. */
function demandedRefusal(
  { permanentBy, expiredBy = [{ status: 401 }] }: SpokenParts,
  { request }: Exchange,
): { readonly kind: 'permanent' | 'expired'; readonly condition: SpokenCondition } | null {
  const kind = request.headers['x-sim'];
  if (kind !== 'permanent' && kind !== 'expired') return null;
  const [condition] = kind === 'permanent' ? (permanentBy ?? []) : expiredBy;
  return condition === undefined ? null : { kind, condition };
}

/** True when a refusal shows the client how long to wait even without `Retry-After`. */
const statesTime = ({ fields, penaltySeconds }: SpokenParts, by: SpokenCondition | undefined): boolean =>
  penaltySeconds !== undefined ||
  by?.waitSeconds !== undefined ||
  (fields !== undefined && [fields].flat().some((one) => 'reset' in one && one.reset !== undefined));

/** The name of the call's quota: the values of everything that distinguishes quotas. */
function quotaName(by: readonly string[], exchange: Exchange): string {
  return by.map((part) => separate(part, exchange)).join(' ');
}

function separate(part: string, { request, path, body }: Exchange): string {
  const { authorization = '', host = '' } = request.headers;
  if (part === 'credential') return authorization;
  if (part === 'host') return host;
  if (part === 'method') return request.method ?? '';
  const [kind = ''] = part.split(':', 1);
  const value = part.slice(kind.length + 1);
  if (kind === 'header') return String(request.headers[value] ?? '');
  if (kind === 'answer') return '';
  if (kind === 'form') return new URLSearchParams(body.toString('utf8')).get(value) ?? '';
  if (kind === 'body') return textOf(objectOf(parseJson(body.toString('utf8')))?.[value.slice(1)]) ?? '';
  const wanted = value.split('/');
  const given = path.split('/').slice(0, wanted.length);
  const isAny = (segment: string | undefined): boolean => segment === '{*}' || segment === '{}';
  const isSame = wanted.every((segment, at) =>
    isAny(segment) ? (given[at] ?? '') !== '' : given[at] === segment,
  );
  return isSame ? given.map((segment, at) => (wanted[at] === '{}' ? '{}' : segment)).join('/') : '';
}
