/**
 * An upstream that enforces any described dialect (`speaks`): its windows, fields, refusals, quotas and penalties.
 *
 * A client asks for a refusal of its own with the field `x-sim`: `permanent` or `expired`. Owns: which quota a call belongs to,
 * the log. Refuses to own: counting (`dialect/quota.ts`) and wording (`dialect/telling.ts`).
 */
import { systemClock, type Clock } from '../clock.ts';
import type { SpokenCondition, SpokenParts } from './dialect/parts.ts';
import { Quota } from './dialect/quota.ts';
import { reportedFields, refusalBy, type Refusal } from './dialect/telling.ts';
import type { Exchange } from './exchange.ts';
import { objectOf, parseJson, textOf } from './json.ts';
import { createHost, type Listening } from './server.ts';

export type { SpokenParts } from './dialect/parts.ts';

export interface DialectOptions {
  readonly speaks: SpokenParts;
  readonly clock?: Clock;
  /** Which of `throttledBy` words its refusals; default: a plain 429. */
  readonly refusesBy?: number;
  /** Refusals have `Retry-After`. Default: unless a field states the reset, or a penalty is meant. */
  readonly retryAfter?: boolean;
  /** Time of an answer, milliseconds; default 0. */
  readonly tookMs?: number;
}

export interface DialectEntry {
  /** Milliseconds since the epoch. */
  readonly at: number;
  readonly quota: string;
  readonly path: string;
  readonly credential: string;
  readonly kind: 'admitted' | 'throttled' | 'permanent' | 'expired';
}

export interface DialectSimulator {
  listen(port?: number): Promise<Listening>;
  readonly log: readonly DialectEntry[];
  /** Errors of the simulator itself. */
  readonly failures: readonly unknown[];
  /** Every quota refuses for so long. */
  closeFor(ms: number): void;
  close(): Promise<void>;
}

export function createDialectSimulator(options: DialectOptions): DialectSimulator {
  const { speaks, clock = systemClock, tookMs = 0 } = options;
  const quotas = new Map<string, Quota>();
  const log: DialectEntry[] = [];
  const failures: unknown[] = [];
  let closedUntil = 0;

  const quotaOf = (name: string): Quota => {
    let quota = quotas.get(name);
    if (quota === undefined) {
      quotas.set(name, (quota = new Quota(speaks)));
      quota.close(closedUntil);
    }
    return quota;
  };

  const throttled = (waitMs: number): Refusal => {
    const by = options.refusesBy === undefined ? undefined : speaks.throttledBy?.[options.refusesBy];
    const refusal = refusalBy(by ?? { status: 429 });
    const isTimed = options.retryAfter ?? !statesTime(speaks, by);
    if (!isTimed) return refusal;
    return { ...refusal, fields: { ...refusal.fields, 'retry-after': String(Math.ceil(waitMs / 1000)) } };
  };

  const answer = async (exchange: Exchange): Promise<void> => {
    const now = clock.now();
    const name = quotaName(speaks.bucketBy ?? ['credential'], exchange);
    const note = (kind: DialectEntry['kind']): void => {
      const credential = exchange.request.headers.authorization ?? '';
      log.push({ at: now, quota: name, path: exchange.path, credential, kind });
    };
    const reply = ({ status, fields, body }: Refusal, reported: Record<string, string>): void =>
      exchange.reply(status, { 'content-type': 'application/json', ...reported, ...fields }, body);
    const wished = wishOf(speaks, exchange);
    if (wished !== null) {
      note(wished.kind);
      return reply(refusalBy(wished.condition), {});
    }
    const quota = quotaOf(name);
    const verdict = quota.ask(now);
    const reported = reportedFields(speaks, quota.windows(now), now);
    if (verdict.kind === 'refused') {
      note('throttled');
      return reply(throttled(verdict.waitMs), reported);
    }
    note('admitted');
    void exchange.over.then(() => quota.done());
    await exchange.sleep(tookMs);
    reply({ status: 200, fields: {}, body: JSON.stringify({ path: exchange.path }) }, reported);
  };

  const host = createHost(clock, () => ({
    arrive: () => undefined,
    handle: answer,
    failed: (error) => void failures.push(error),
  }));
  return {
    listen: async (port = 0) => await host.listen(port),
    close: async () => await host.close(),
    log,
    failures,
    closeFor(ms) {
      closedUntil = clock.now() + ms;
      for (const quota of quotas.values()) quota.close(closedUntil);
    },
  };
}

/** The refusal that the client asks for; `null` = none. */
function wishOf(
  { permanentBy, expiredBy = [{ status: 401 }] }: SpokenParts,
  { request }: Exchange,
): { readonly kind: 'permanent' | 'expired'; readonly condition: SpokenCondition } | null {
  const kind = request.headers['x-sim'];
  if (kind !== 'permanent' && kind !== 'expired') return null;
  const [condition] = kind === 'permanent' ? (permanentBy ?? []) : expiredBy;
  return condition === undefined ? null : { kind, condition };
}

/** A refusal in which the client finds how long to wait without `Retry-After`. */
const statesTime = ({ fields, penaltySeconds }: SpokenParts, by: SpokenCondition | undefined): boolean =>
  penaltySeconds !== undefined ||
  by?.waitSeconds !== undefined ||
  (fields !== undefined && [fields].flat().some((one) => 'reset' in one && one.reset !== undefined));

/** The quota of a call, by what distinguishes quotas. */
function quotaName(by: readonly string[], exchange: Exchange): string {
  return by.map((part) => separate(part, exchange)).join(' ');
}

function separate(part: string, { request, path, body }: Exchange): string {
  const { authorization = '', host = '' } = request.headers;
  if (part === 'credential') return authorization;
  if (part === 'host') return host;
  const [kind = ''] = part.split(':', 1);
  const value = part.slice(kind.length + 1);
  if (kind === 'header') return String(request.headers[value] ?? '');
  if (kind === 'body') return textOf(objectOf(parseJson(body.toString('utf8')))?.[value.slice(1)]) ?? '';
  const pattern = new RegExp(
    `^${value.replaceAll(/[.*+?^$()|[\]\\]/g, '\\$&').replaceAll(/\{\\\*\}/g, '[^/]+')}(?=/|$)`,
  );
  return pattern.exec(path)?.[0] ?? '';
}
