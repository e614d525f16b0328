/**
 * The live page: while somebody looks at it, reads the state of all upstreams every two seconds and sends it; serves the files. Owns the
 * pace, and what of Sluice itself is shown; does not own figures and words (`activity/`), connections (`event-stream.ts`), looks (`static/`).
 */
import { fileURLToPath } from 'node:url';
import express, { type Express } from 'express';
import type { Activity } from '../activity/activity.ts';
import type { GatewayState } from '../activity/shape.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import { createEventStream, eventOf } from '../observation/event-stream.ts';
import type { RunningTelemetry } from '../telemetry/telemetry.ts';
import { packageVersion } from '../version.ts';

interface PageParts {
  readonly activity: Activity;
  readonly telemetry: Pick<RunningTelemetry, 'limiterHealth' | 'configuration'>;
  readonly gateway: () => GatewayState;
  readonly clock: Clock;
  /** Called with an error of the page; the page goes on. */
  readonly onBug: (error: unknown) => void;
}

/** What the page shows at one instant. */
export type PageState = Awaited<ReturnType<Page['state']>>;

const everyMs = 2_000;
/** Workspaces are sent this often: replaying their hours is the page's only cost. Milliseconds. */
const activityEveryMs = 15_000;

/** The page of one replica. It reads nothing while nobody looks. */
export class Page {
  readonly #parts: PageParts;
  readonly #stream = createEventStream();
  /** When workspaces are sent next, monotonic milliseconds. */
  #activityAt = 0;
  #next: CancelTimer | null = null;
  #isClosed = false;

  constructor(parts: PageParts) {
    this.#parts = parts;
  }

  /** `GET /`; its files and the event stream are under `/page/`. */
  addRoutes(app: Express): void {
    app.get('/', files);
    app.use('/page', files);
    app.get('/page/events', (request, response) => {
      this.#stream.open(request, response, '');
      this.#activityAt = 0;
      if (this.#next === null) this.#sendAndGoOn();
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#next?.();
    this.#stream.close();
  }

  #sendAndGoOn(): void {
    this.#next = () => {};
    this.#send()
      .catch(this.#parts.onBug)
      .finally(() => {
        this.#next =
          this.#isClosed || this.#stream.listeners.size === 0
            ? null
            : this.#parts.clock.after(everyMs, () => this.#sendAndGoOn());
      });
  }

  async state() {
    const { activity, telemetry, gateway, clock } = this.#parts;
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

  async #send(): Promise<void> {
    const { activity, clock } = this.#parts;
    this.#stream.send(eventOf('state', await this.state()));
    const now = clock.monotonic();
    if (now < this.#activityAt) return;
    this.#activityAt = now + activityEveryMs;
    const { workspaces } = await activity.ofAll(3_600_000);
    this.#stream.send(eventOf('workspaces', workspaces));
  }
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
