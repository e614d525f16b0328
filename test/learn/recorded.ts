/** Recordings of a simulated upstream, as a browser saves them: what its quota and its wording make of calls that come a little too fast. */
import { Quota } from '../../simulators/dialect/quota.ts';
import type { SpokenParts } from '../../simulators/dialect.ts';
import { refusalBy, reportedFields } from '../../simulators/dialect/response-fields.ts';

const startAt = 1_800_000_000_000;

/**
 * A HAR file with 200 responses. `draw` gives numbers of 0 to 1; the first of `throttledBy` words the refusals, else they are a
 * plain 429.
 */
export function recordingOf(speaks: SpokenParts, draw: () => number): string {
  const { windows = [], throttledBy: [refusal = { status: 429 }] = [] } = speaks;
  const paceMs = Math.max(...windows.map(({ requests, seconds }) => (seconds * 1000) / requests));
  const quota = new Quota(speaks);
  let at = startAt;
  const entries = Array.from({ length: 200 }, (_, index) => {
    at += Math.max(1, Math.round(paceMs * (0.2 + 0.6 * draw())));
    const isTaken = quota.ask(at).kind === 'admitted';
    if (isTaken) quota.done();
    const { status, body } = isTaken ? { status: 200, body: '{}' } : refusalBy(refusal);
    const fields = Object.entries(reportedFields(speaks, quota.windows(at), at));
    return {
      startedDateTime: new Date(at).toISOString(),
      request: { method: 'GET', url: `https://api.acme.example/v1/things?page=${index}`, headers: [] },
      response: {
        status,
        headers: fields.map(([name, value]) => ({ name, value })),
        content: { text: body },
      },
    };
  });
  return JSON.stringify({ log: { version: '1.2', entries } });
}
