/**
 * Routes of the admin port that change something: `POST /upstreams/{name}/open`, `/pause?seconds=` and `/resume`.
 * Owns: how they answer, and that each command is reported. Does not own: who may give one (`admin-guard.ts`).
 */
import type { Express, Request, Response } from 'express';
import { secondsInQuery } from '../duration.policy.ts';
import { nearest } from '../nearest.policy.ts';
import { adminProblem } from './admin-guard.ts';

/** What came of a command that was carried out: `not_paused` = there was no pause to end. */
type Outcome = 'done' | 'not_paused' | 'unavailable';

/** What an operator may do about an upstream. */
export interface ControlActions {
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

/** @param onCommand called with each command, also one that changed nothing */
export function addControlRoutes(
  app: Express,
  actions: ControlActions,
  onCommand: (command: GivenCommand) => void,
): void {
  for (const verb of ['open', 'resume', 'pause'] as const) {
    app.post(`/upstreams/:name/${verb}`, async (request: Request, response: Response) => {
      const name = String(request.params['name']);
      const known = actions.upstreams();
      const seconds = verb === 'pause' ? pauseSecondsOf(request.url) : null;
      const fault =
        verb === 'pause' && seconds === null ? 'invalid' : known.includes(name) ? null : 'unknown';
      const result = fault ?? (await actions[verb](name, (seconds ?? 0) * 1_000));
      onCommand({ verb, upstream: fault === null ? name : null, seconds, result });
      respond(response, result, nearest(name, known));
    });
    app.all(`/upstreams/:name/${verb}`, (_request: Request, response: Response) => {
      response.set('Allow', 'POST');
      adminProblem(response, { status: 405, code: 'method_not_allowed', detail: 'Use POST.' });
    });
  }
}

function pauseSecondsOf(url: string): number | null {
  const seconds = secondsInQuery(url, 'seconds') ?? 0;
  return seconds > 0 && seconds <= maxPauseSeconds ? seconds : null;
}

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
  unknown: {
    status: 404,
    code: 'not_found',
    detail: 'No upstream of the configuration has this name',
  },
} as const;

/** @param meant the name that was probably meant where there is no such upstream; `null` = none is near */
function respond(response: Response, result: GivenCommand['result'], meant: string | null): void {
  if (result === 'done' || result === 'not_paused') return void response.json({ result });
  if (result === 'unavailable') response.set('Retry-After', '1');
  const problem = problems[result];
  const rest = meant === null ? '.' : `: did you mean ${meant}?`;
  adminProblem(response, result === 'unknown' ? { ...problem, detail: problem.detail + rest } : problem);
}
