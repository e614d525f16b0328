/**
 * Routes of the admin port that change something: `POST /upstreams/{name}/open`, `/pause?seconds=` and `/resume`.
 * Owns: who may call them and how they answer. A page that a browser shows cannot send the field that they demand.
 */
import type { Express, Request, Response } from 'express';

/** The result of a command; `unknown` = there is no such upstream. */
export type ControlResult = 'done' | 'unavailable' | 'unknown';

export interface ControlActions {
  open(upstream: string): Promise<ControlResult>;
  pause(upstream: string, ms: number): Promise<ControlResult>;
  resume(upstream: string): Promise<ControlResult>;
}

/** A day: longer than an upstream closes a bucket. */
const maxPauseSeconds = 86_400;

export function addControlRoutes(app: Express, actions: ControlActions): void {
  const route = (
    verb: string,
    act: (upstream: string, request: Request) => Promise<ControlResult> | null,
  ) => {
    app.post(`/upstreams/:name/${verb}`, async (request: Request, response: Response) => {
      if (request.get('sluice-admin') !== 'yes') {
        problem(response, 403, 'admin_field_missing', 'Send the field `Sluice-Admin: yes`.');
        return;
      }
      const acting = act(String(request.params['name']), request);
      if (acting === null) {
        problem(response, 400, 'request_invalid', 'Give `?seconds=`, more than 0 and at most 86400.');
        return;
      }
      respond(response, await acting);
    });
    app.all(`/upstreams/:name/${verb}`, (_request: Request, response: Response) => {
      response.set('Allow', 'POST');
      problem(response, 405, 'method_not_allowed', 'Use POST.');
    });
  };
  route('open', (upstream) => actions.open(upstream));
  route('resume', (upstream) => actions.resume(upstream));
  route('pause', (upstream, request) => {
    const seconds = secondsOf(request.url);
    return seconds === null ? null : actions.pause(upstream, seconds * 1_000);
  });
}

function secondsOf(url: string): number | null {
  const text = new URLSearchParams(url.slice(url.indexOf('?') + 1 || url.length)).get('seconds') ?? '';
  const seconds = /^\d{1,5}(\.\d{1,3})?$/.test(text) ? Number(text) : 0;
  return seconds > 0 && seconds <= maxPauseSeconds ? seconds : null;
}

function respond(response: Response, result: ControlResult): void {
  switch (result) {
    case 'done':
      response.json({ result });
      return;
    case 'unavailable':
      response.set('Retry-After', '1');
      problem(
        response,
        503,
        'limiter_unavailable',
        'Redis is away, so the other replicas cannot be told. Try again.',
      );
      return;
    case 'unknown':
      problem(response, 404, 'not_found', 'No upstream of the configuration has this name.');
  }
}

function problem(response: Response, status: number, code: string, detail: string): void {
  response
    .status(status)
    .type('application/problem+json')
    .send(JSON.stringify({ type: `urn:sluice:error:${code}`, title: detail, status, detail, code }));
}
