/**
 * The settings that calls are served by now, with what is derived from them: the routes, and the fields in which
 * credentials of upstreams are sent.
 *
 * Invariant: all three are replaced at once, so that no call sees a part of a change.
 */
import { injectedFields } from './auth/authenticate.ts';
import type { Settings } from './config/settings.ts';
import { pseudonym } from './dispatch/dispatcher.ts';
import { createRouteFinder, type RouteFinder } from './target/route.ts';

export class SettingsInUse {
  #settings: Settings;
  #routes: RouteFinder;
  #injected: ReadonlySet<string>;

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#injected = injectedFields(settings);
  }

  get settings(): Settings {
    return this.#settings;
  }

  get routes(): RouteFinder {
    return this.#routes;
  }

  /** Fields in which credentials are sent to upstreams, lower case: an API key may come in them. */
  get injected(): ReadonlySet<string> {
    return this.#injected;
  }

  /** `injected`: the fields of the new settings, collected in slices before the change. */
  replace(settings: Settings, injected: ReadonlySet<string>): void {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#injected = injected;
  }
}
