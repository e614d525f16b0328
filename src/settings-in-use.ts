/**
 * The settings that calls are served by now, with what is derived from them: the routes, and the fields in which
 * credentials of upstreams are sent.
 *
 * Invariant: all of it is replaced at once, so that no call sees a part of a change.
 */
import { injectedFields } from './auth/authenticate.ts';
import type { Settings } from './config/settings.ts';
import { pseudonym } from './dispatch/upstream-request.ts';
import { createRouteFinder, type RouteFinder } from './target/route.ts';

export class SettingsInUse {
  #settings: Settings;
  #routes: RouteFinder;
  #credentialFields: ReadonlySet<string>;
  #keyFields: readonly string[];

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#credentialFields = injectedFields(settings);
    this.#keyFields = keyFieldsOf(this.#credentialFields);
  }

  get settings(): Settings {
    return this.#settings;
  }

  get routes(): RouteFinder {
    return this.#routes;
  }

  /** Lower-case names of the fields in which credentials are sent to upstreams. A client may send its API key in one of them. */
  get credentialFields(): ReadonlySet<string> {
    return this.#credentialFields;
  }

  /** Lower-case names of all fields in which a client may send its API key. */
  get keyFields(): readonly string[] {
    return this.#keyFields;
  }

  /**
   * Replaces all of it. `credentialFields` belongs to the new settings: the caller collects it beforehand in slices, because a
   * scan of all workspaces at once would delay calls.
   */
  replace(settings: Settings, credentialFields: ReadonlySet<string>): void {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#credentialFields = credentialFields;
    this.#keyFields = keyFieldsOf(credentialFields);
  }
}

const keyFieldsOf = (credentialFields: ReadonlySet<string>): readonly string[] => [
  ...new Set(['authorization', 'sluice-key', ...credentialFields]),
];
