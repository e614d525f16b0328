/**
 * The live page: takes a sample every two seconds, sends it to open pages, serves the files. Owns the pace; does not own
 * figures (`state.ts`), connections (`event-stream.ts`) and looks (`static/`).
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AllActivity } from '../activity/snapshot.ts';
import type { Clock } from '../clock.ts';
import type { LimiterHealth } from '../telemetry/events.ts';
import { contentSecurityPolicy, loadAssets } from './assets.ts';
import { createEventStream, eventOf } from '../observation/event-stream.ts';
import { pageState, type PageSource, type PageState, type WholeUpstream } from './state.ts';
import { sampleEveryMs, type Timeline } from './timeline.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** The part of an Express application that is needed to add the page's routes. */
export interface PageRoutes {
  get(path: string, handler: Handler): unknown;
}

export interface PageParts {
  readonly source: PageSource;
  readonly timeline: Timeline;
  readonly clock: Clock;
  /** Called with an error of the page; the page goes on. */
  readonly onBug: (error: unknown) => void;
}

async function wholeUpstream(source: PageSource, name: string): Promise<WholeUpstream> {
  const [calls, counts] = await Promise.all([source.callsTo(name), source.countsOf(name)]);
  return { name, ...calls, ...counts };
}

/** Workspaces are sent this often while a page is open: replaying their hours is the page's only cost. */
const activityEveryMs = 15_000;
/** Samples that make up a minute. */
const minute = Math.round(60_000 / sampleEveryMs);

/** The page of one replica. It takes samples from the beginning, until it is closed. */
export class Page {
  /** `GET /`. */
  readonly index: Handler;
  readonly #parts: PageParts;
  readonly #assets = loadAssets();
  readonly #stream = createEventStream();
  readonly #healths: LimiterHealth[] = [];
  #latest: PageState | null = null;
  #activity: AllActivity | null = null;
  /** Monotonic milliseconds; `null` = never. */
  #activityAt: number | null = null;
  #isClosed = false;
  #cancel = (): void => {};

  constructor(parts: PageParts) {
    this.#parts = parts;
    this.index = this.#serve('/');
    this.#tick().catch(parts.onBug);
    this.#tickLater();
  }

  /** The files and the event stream, all under `/page/`. */
  addRoutes(app: PageRoutes): void {
    for (const path of this.#assets.keys()) if (path !== '/') app.get(path, this.#serve(path));
    app.get('/page/events', (request, response) => {
      const known = [eventOf('history', this.#parts.timeline.samples)];
      if (this.#latest !== null) known.push(eventOf('state', this.#latest));
      if (this.#activity !== null) known.push(eventOf('activity', this.#activity));
      this.#stream.open(request, response, known.join(''));
      this.#sendActivity().catch(this.#parts.onBug);
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel();
    this.#stream.close();
  }

  #tickLater(): void {
    this.#cancel = this.#parts.clock.after(sampleEveryMs, () => {
      this.#tick()
        .catch(this.#parts.onBug)
        .finally(() => {
          if (!this.#isClosed) this.#tickLater();
        });
    });
  }

  async #tick(): Promise<void> {
    const { source, timeline } = this.#parts;
    const sample = timeline.sample(source.live(), source.process());
    this.#healths.push(source.limiterHealth());
    if (this.#healths.length > minute + 1) this.#healths.shift();
    const before = this.#healths[0] ?? source.limiterHealth();
    const replicas = await source.replicas();
    const all = timeline.samples;
    // Counts of other replicas are read only while a page is open.
    const shown = this.#stream.size === 0 ? [] : source.live();
    const whole = await Promise.all(shown.map(({ upstream }) => wholeUpstream(source, upstream)));
    this.#latest = pageState(source, {
      sample,
      lastMinute: all.slice(-minute),
      all,
      replicas,
      whole,
      before,
    });
    if (this.#stream.size === 0) return;
    this.#stream.send(eventOf('state', this.#latest));
    await this.#sendActivity();
  }

  async #sendActivity(): Promise<void> {
    const now = this.#parts.clock.monotonic();
    if (this.#activityAt !== null && now - this.#activityAt < activityEveryMs) return;
    this.#activityAt = now;
    this.#activity = await this.#parts.source.activity(3_600_000);
    this.#stream.send(eventOf('activity', this.#activity));
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
