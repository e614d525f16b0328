/**
 * Routes of the admin port that change something: `POST /upstreams/{name}/open`, `/pause?seconds=` and `/resume`.
 * Owns: how they answer, and that each command is reported. Does not own: who may give one (`admin-guard.ts`).
 */
import type { Express } from 'express';
import { secondsInQuery } from '../duration.policy.ts';
import { nearest } from '../nearest.policy.ts';
import { adminProblem } from './admin-guard.ts';

/** What came of a command that was carried out: `not_paused` = there was no pause to end. */
type Outcome = 'done' | 'not_paused' | 'unavailable';

/** What an operator may do about an upstream. */
interface ControlActions {
  /** Names of the upstreams that are configured now; no other name is acted on. */
  upstreams(): readonly string[];
  open(upstream: string): Promise<Outcome>;
  pause(upstream: string, ms: number): Promise<Outcome>;
  resume(upstream: string): Promise<Outcome>;
}

/** A command as it was given, and what came of it. */
export interface GivenCommand {
  readonly verb: 'open' | 'pause' | 'resume';
  /** `null` where it was not found to be an upstream's name: a name that nobody configured may be anything. */
  readonly upstream: string | null;
  /** Of a pause. */
  readonly seconds: number | null;
  readonly result: Outcome | 'unknown' | 'invalid';
}

/** A day: longer than an upstream closes a bucket. */
const maxPauseSeconds = 86_400;

const problems = {
  invalid: {
    status: 400,
    code: 'request_invalid',
    detail: 'Give `?seconds=`, more than 0 and at most 86400, such as 90, 90s or 5m.',
  },
  unavailable: {
    status: 503,
    code: 'limiter_unavailable',
    detail: 'Redis is away, so the other replicas cannot be told. Try again.',
  },
  unknown: { status: 404, code: 'not_found', detail: 'No upstream of the configuration has this name' },
} as const;

/** @param onCommand called with each command, also one that changed nothing */
export function addControlRoutes(
  app: Express,
  actions: ControlActions,
  onCommand: (command: GivenCommand) => void,
): void {
  for (const verb of ['open', 'resume', 'pause'] as const) {
    app.post(`/upstreams/:name/${verb}`, async (request, response) => {
      const { name } = request.params;
      const known = actions.upstreams();
      const stated = verb === 'pause' ? (secondsInQuery(request.url, 'seconds') ?? 0) : null;
      const seconds = stated !== null && stated > 0 && stated <= maxPauseSeconds ? stated : null;
      const isValid = seconds === stated;
      const fault = !isValid ? 'invalid' : known.includes(name) ? null : 'unknown';
      const result = fault ?? (await actions[verb](name, (seconds ?? 0) * 1_000));
      onCommand({ verb, upstream: fault === null ? name : null, seconds, result });
      if (result === 'done' || result === 'not_paused') return void response.json({ result });
      if (result === 'unavailable') response.set('Retry-After', '1');
      const { detail } = problems[result];
      const meant = nearest(name, known);
      const hint = meant === null ? '.' : `: did you mean ${meant}?`;
      adminProblem(response, {
        ...problems[result],
        detail: result === 'unknown' ? detail + hint : detail,
      });
    });
    app.all(`/upstreams/:name/${verb}`, (_request, response) => {
      response.set('Allow', 'POST');
      adminProblem(response, { status: 405, code: 'method_not_allowed', detail: 'Use POST.' });
    });
  }
}
