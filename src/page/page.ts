/**
 * The live page: takes a sample every two seconds, sends it to open pages, serves the files. Owns the pace; refuses to own
 * figures (`state.ts`), connections (`event-stream.ts`) and looks (`static/`).
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AllActivity } from '../activity/snapshot.ts';
import type { Clock } from '../clock.ts';
import type { LimiterHealth } from '../telemetry/events.ts';
import { contentSecurityPolicy, loadAssets } from './assets.ts';
import { createEventStream, eventOf } from './event-stream.ts';
import { pageState, type PageSource, type PageState, type WholeUpstream } from './state.ts';
import { sampleEveryMs, type Timeline } from './timeline.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** The part of an Express application that is needed to add the page's routes. */
export interface PageRoutes {
  get(path: string, handler: Handler): unknown;
}

export interface Page {
  /** `GET /`. */
  readonly index: Handler;
  /** The files and the event stream, all under `/page/`. */
  addRoutes(app: PageRoutes): void;
  close(): void;
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

export function createPage({ source, timeline, clock, onBug }: PageParts): Page {
  const assets = loadAssets();
  const stream = createEventStream();
  const healths: LimiterHealth[] = [];
  let latest: PageState | null = null;
  let activity: AllActivity | null = null;
  let activityAt = -Infinity;
  let closed = false;

  async function tick(): Promise<void> {
    const sample = timeline.sample(source.live());
    healths.push(source.limiterHealth());
    if (healths.length > minute + 1) healths.shift();
    const before = healths[0] ?? source.limiterHealth();
    const replicas = await source.replicas();
    const all = timeline.samples;
    // Asked of the other replicas only while somebody looks.
    const shown = stream.size === 0 ? [] : source.live();
    const whole = await Promise.all(shown.map(({ upstream }) => wholeUpstream(source, upstream)));
    latest = pageState(source, { sample, lastMinute: all.slice(-minute), all, replicas, whole, before });
    if (stream.size === 0) return;
    stream.send(eventOf('state', latest));
    await sendActivity();
  }

  async function sendActivity(): Promise<void> {
    if (clock.monotonic() - activityAt < activityEveryMs) return;
    activityAt = clock.monotonic();
    activity = await source.activity(3_600_000);
    stream.send(eventOf('activity', activity));
  }

  let cancel = (): void => {};
  const later = (): void => {
    cancel = clock.after(sampleEveryMs, () => {
      tick()
        .catch(onBug)
        .finally(() => {
          if (!closed) later();
        });
    });
  };
  tick().catch(onBug);
  later();

  const serve =
    (path: string): Handler =>
    (_request, response) => {
      const asset = assets.get(path);
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

  return {
    index: serve('/'),
    addRoutes(app) {
      for (const path of assets.keys()) if (path !== '/') app.get(path, serve(path));
      app.get('/page/events', (request, response) => {
        const known = [eventOf('history', timeline.samples)];
        if (latest !== null) known.push(eventOf('state', latest));
        if (activity !== null) known.push(eventOf('activity', activity));
        stream.open(request, response, known.join(''));
        sendActivity().catch(onBug);
      });
    },
    close() {
      closed = true;
      cancel();
      stream.close();
    },
  };
}
