/**
 * The live page: while somebody looks at it, reads the state of all upstreams every two seconds and sends it; serves the files. Owns the
 * pace, and what of Sluice itself is shown; does not own figures and words (`activity/`), connections (`event-stream.ts`), looks (`static/`).
 */
import { fileURLToPath } from 'node:url';
import express, { type Express } from 'express';
import type { Activity } from '../activity/activity.ts';
import type { GatewayState } from '../activity/shape.ts';
import { every, type Clock } from '../clock.ts';
import { createEventStream, eventOf } from '../observation/event-stream.ts';
import type { RunningTelemetry } from '../telemetry/telemetry.ts';
import { packageVersion } from '../version.ts';

const everyMs = 2_000;
/** Workspaces are sent this often: replaying their hours is the page's only cost. Milliseconds. */
const activityEveryMs = 15_000;

/** What the page shows at one instant. */
export type PageState = Awaited<ReturnType<ReturnType<typeof createPage>['state']>>;

/** The page of one replica. It reads nothing while nobody looks. `onBug`: called with an error of the page, which goes on. */
export function createPage(parts: {
  readonly activity: Activity;
  readonly telemetry: Pick<RunningTelemetry, 'limiterHealth' | 'configuration'>;
  readonly gateway: () => GatewayState;
  readonly clock: Clock;
  readonly onBug: (error: unknown) => void;
}) {
  const { activity, telemetry, gateway, clock, onBug } = parts;
  const stream = createEventStream();
  /** When workspaces are sent next, monotonic milliseconds. */
  let activityAt = 0;
  let isSending = false;
  async function state() {
    const ends = gateway()
      .credentials()
      .map(({ expiresInMs }) => expiresInMs);
    return {
      /** Unix milliseconds. */
      at: clock.now(),
      version: packageVersion(),
      ...(await activity.upstreams()),
      limiter: telemetry.limiterHealth(),
      configuration: telemetry.configuration(),
      /** The load of the replica that shows the page. */
      process: gateway().process(),
      /** Time until the first upstream credential ends, milliseconds; `null` = none has an end that is known. */
      credentialEndsInMs: ends.length === 0 ? null : Math.min(...ends),
    };
  }
  async function send(): Promise<void> {
    if (isSending || stream.listeners.size === 0) return;
    isSending = true;
    try {
      stream.send(eventOf('state', await state()));
      const now = clock.monotonic();
      if (now < activityAt) return;
      activityAt = now + activityEveryMs;
      const { workspaces } = await activity.ofAll(3_600_000);
      stream.send(eventOf('workspaces', workspaces));
    } finally {
      isSending = false;
    }
  }
  const stop = every(clock, everyMs, () => void send().catch(onBug));
  return {
    state,
    /** `GET /`; its files and the event stream are under `/page/`. */
    addRoutes(app: Express): void {
      app.get('/', files);
      app.use('/page', files);
      app.get('/page/events', (request, response) => {
        stream.open(request, response, '');
        activityAt = 0;
        send().catch(onBug);
      });
    },
    close(): void {
      stop();
      stream.close();
    },
  };
}

/** Nothing but our own files, nothing inline, nobody may frame it. */
const contentSecurityPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const files = express.static(fileURLToPath(new URL('./static', import.meta.url)), {
  redirect: false,
  setHeaders: (response) =>
    response
      .setHeader('Content-Security-Policy', contentSecurityPolicy)
      .setHeader('Referrer-Policy', 'no-referrer')
      .setHeader('X-Content-Type-Options', 'nosniff'),
});
