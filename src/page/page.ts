/**
 * The live page: while somebody looks at it, reads the state of all upstreams every two seconds and sends it; serves the files. Owns the
 * pace, and what of Sluice itself is shown; does not own figures and words (`activity/`), connections (`event-stream.ts`), looks (`static/`).
 */
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Activity } from '../activity/activity.ts';
import type { AllUpstreams, GatewayState } from '../activity/shape.ts';
import type { SharedActivity } from '../activity/shared.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import { createEventStream, eventOf } from '../observation/event-stream.ts';
import type { ConfigurationState, LimiterHealth, ProcessPressure } from '../telemetry/events.ts';
import { packageVersion } from '../version.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** The part of an Express application that is needed to add the page's routes. */
export interface PageRoutes {
  get(path: string, handler: Handler): unknown;
}

export interface PageParts {
  readonly activity: Pick<Activity, 'upstreams' | 'ofAll'>;
  readonly shared: Pick<SharedActivity, 'replicas'>;
  readonly telemetry: {
    limiterHealth(): LimiterHealth;
    configuration(): ConfigurationState;
  };
  readonly gateway: () => Pick<GatewayState, 'credentials' | 'process'>;
  readonly clock: Clock;
  /** Called with an error of the page; the page goes on. */
  readonly onBug: (error: unknown) => void;
}

/** What the page shows at one instant. */
export interface PageState extends AllUpstreams {
  /** Unix milliseconds. */
  readonly at: number;
  readonly version: string;
  readonly replicas: number;
  readonly limiter: LimiterHealth;
  readonly configuration: ConfigurationState;
  /** The load of the replica that shows the page. */
  readonly process: ProcessPressure;
  /** Time until the first upstream credential ends, milliseconds; `null` = none has an end that is known. */
  readonly credentialEndsInMs: number | null;
}

const everyMs = 2_000;
/** Workspaces are sent this often: replaying their hours is the page's only cost. Milliseconds. */
const activityEveryMs = 15_000;

/** The page of one replica. It reads nothing while nobody looks. */
export class Page {
  /** `GET /`. */
  readonly index: Handler;
  readonly #parts: PageParts;
  readonly #assets = loadAssets();
  readonly #stream = createEventStream();
  /** Monotonic milliseconds; `null` = never. */
  #activityAt: number | null = null;
  #next: CancelTimer | null = null;
  #isClosed = false;

  constructor(parts: PageParts) {
    this.#parts = parts;
    this.index = this.#serve('/');
  }

  /** The files and the event stream, all under `/page/`. */
  addRoutes(app: PageRoutes): void {
    for (const path of this.#assets.keys()) if (path !== '/') app.get(path, this.#serve(path));
    app.get('/page/events', (request, response) => {
      this.#stream.open(request, response, '');
      this.#activityAt = null;
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
          this.#isClosed || this.#stream.size === 0
            ? null
            : this.#parts.clock.after(everyMs, () => this.#sendAndGoOn());
      });
  }

  async #send(): Promise<void> {
    const { activity, shared, telemetry, gateway, clock } = this.#parts;
    const ends = gateway()
      .credentials()
      .map(({ expiresInMs }) => expiresInMs);
    const state: PageState = {
      at: clock.now(),
      version: packageVersion(),
      ...(await activity.upstreams()),
      replicas: await shared.replicas(),
      limiter: telemetry.limiterHealth(),
      configuration: telemetry.configuration(),
      process: gateway().process(),
      credentialEndsInMs: ends.length === 0 ? null : Math.min(...ends),
    };
    this.#stream.send(eventOf('state', state));
    const now = clock.monotonic();
    if (this.#activityAt !== null && now - this.#activityAt < activityEveryMs) return;
    this.#activityAt = now;
    const { workspaces } = await activity.ofAll(3_600_000);
    this.#stream.send(eventOf('workspaces', workspaces));
  }

  #serve(path: string): Handler {
    return (_request, response) => {
      const asset = this.#assets.get(path);
      if (asset === undefined) return void response.writeHead(404).end();
      response
        .writeHead(200, {
          'Content-Type': asset.type,
          'Content-Length': asset.body.length,
          'Content-Security-Policy': contentSecurityPolicy,
          'Referrer-Policy': 'no-referrer',
          'X-Content-Type-Options': 'nosniff',
        })
        .end(asset.body);
    };
  }
}

export interface Asset {
  readonly type: string;
  readonly body: Buffer;
}

/** Nothing but our own files, nothing inline, nobody may frame it. */
export const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const types = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

/** Path on the admin port → file. */
export function loadAssets(): ReadonlyMap<string, Asset> {
  const own = (name: string): Buffer => readFileSync(new URL(`./static/${name}`, import.meta.url));
  return new Map<string, Asset>([
    ['/', { type: types.html, body: own('index.html') }],
    ['/page/page.css', { type: types.css, body: own('page.css') }],
    ['/page/page.js', { type: types.js, body: own('page.js') }],
    ['/page/icon.svg', { type: types.svg, body: own('icon.svg') }],
  ]);
}
