/**
 * READ FIRST of this folder. Upstream credentials as they are now: fixed values, files that are read again, tokens that are
 * renewed. One source serves every upstream and workspace that is configured with the same file or the same OAuth client.
 *
 * Owns: the sources' lives over reloads, and what is reported of them. Does not own: which credential a call has
 * (`target/route.ts`), who waits for one and how long (`journey/`).
 * Keeps: no secret and no token is logged, counted, or part of a failure.
 */
import type { Clock, Random } from '../clock.ts';
import type {
  CredentialSource,
  Settings,
  UpstreamCredential,
  UpstreamSettings,
  WorkspaceSettings,
} from '../config/settings.ts';
import type { ObservedCredential, RenewalOutcome } from '../telemetry/events.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { FileSource } from './file-source.ts';
import { OAuthSource } from './oauth-source.ts';
import { FileWatch } from '../file-watch.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import { RefreshGrants } from './refresh/refresh-grant.ts';
import { clientIn, sharedName, SharedTokens, type SharedToken } from './shared-tokens.ts';
import { createFixedSource, type Source, type CredentialState } from './source.ts';
import { createTokenFetcher, type FetchToken, type SendTokenRequest } from './token-fetcher.ts';

export type { CredentialState } from './source.ts';

/** A credential and the upstream it is sent to. */
export interface CredentialUse {
  readonly credential: UpstreamCredential;
  readonly upstream: UpstreamSettings;
}

export interface CredentialParts {
  readonly settings: Pick<Settings, 'privacy' | 'upstreams'>;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Pick<Telemetry, 'credentialRenewal' | 'log'>;
  readonly send: SendTokenRequest;
  /** Shares tokens with the other replicas; `null` = there are none. */
  readonly createMap: CreateMap | null;
}

type ChangingSource = Exclude<CredentialSource, { kind: 'value' }>;

interface Kept {
  readonly source: Source;
  /** Names of the upstreams that it is sent to. */
  readonly upstreams: Set<string>;
  readonly close: () => void;
  /** Name under which replicas share the token, and the source that is given a new one; `null` = the token is not shared. */
  readonly shared: { readonly name: string; readonly source: OAuthSource } | null;
}

export class Credentials {
  readonly #parts: CredentialParts;
  /** Refresh tokens in their files. */
  readonly #refreshGrants: RefreshGrants;
  /** Fetches at the endpoint, for this replica alone. */
  readonly #fetch: FetchToken;
  /** Tokens of clients that all replicas share; `null` = there are no others. */
  readonly #shared: SharedTokens | null;
  /** Sources by their `sourceKey`. The keys contain secrets, and stay in memory. */
  readonly #kept = new Map<string, Kept>();
  readonly #keys = new WeakMap<CredentialSource, string>();
  readonly #fixed = new WeakMap<CredentialSource, Source>();
  #isClosed = false;

  constructor(parts: CredentialParts) {
    const { clock, createMap, random, send, settings } = parts;
    const { labelKey } = settings.privacy;
    this.#parts = parts;
    this.#refreshGrants = new RefreshGrants(parts);
    const fetch = this.#refreshGrants.fetcher(createTokenFetcher({ clock, send }));
    this.#fetch = fetch;
    const map = createMap?.<SharedToken>({
      name: 'token.2',
      onChange: (name, { value }) => this.#changedElsewhere(name, value),
    });
    this.#shared = map === undefined ? null : new SharedTokens({ clock, random, labelKey, map, fetch });
    this.reload(settings.upstreams, new SourceNames(settings.upstreams));
  }

  now(use: CredentialUse): CredentialState {
    return this.#sourceOf(use).now();
  }

  /** See {@link Source.refused}. */
  refused(use: CredentialUse, version: number): Promise<boolean> {
    return this.#sourceOf(use).refused(version);
  }

  /** See {@link Source.accepted}. */
  accepted(use: CredentialUse, version: number): void {
    this.#sourceOf(use).accepted(version);
  }

  /** Credentials in use whose end is known. */
  observed(): readonly ObservedCredential[] {
    return [...this.#kept.values()].flatMap(({ source, upstreams }) => {
      const expiresInMs = source.expiresInMs();
      return expiresInMs === null ? [] : [...upstreams].map((upstream) => ({ upstream, expiresInMs }));
    });
  }

  /**
   * Takes over new settings: sources of none of `used` end, and credentials of upstreams are fetched before the first call.
   * @param used the sources of these settings
   */
  reload(upstreams: Settings['upstreams'], used: SourceNames): void {
    for (const [key, kept] of this.#kept) {
      if (used.has(key)) continue;
      kept.close();
      this.#kept.delete(key);
    }
    for (const kept of this.#kept.values()) {
      for (const name of kept.upstreams) if (!upstreams.has(name)) kept.upstreams.delete(name);
    }
    for (const upstream of upstreams.values()) {
      const { credential } = upstream;
      if (credential !== null && credential.source.kind !== 'value') this.now({ credential, upstream });
    }
  }

  /** A replica has written this about a client's tokens. */
  #changedElsewhere(entryName: string, value: SharedToken): void {
    for (const { shared } of this.#kept.values()) {
      if (shared?.name !== clientIn(entryName)) continue;
      if (value.kind === 'token') shared.source.storedElsewhere();
    }
  }

  /** Resolves when no refresh token is under way any more: its response may be the only one that names the next. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const kept of this.#kept.values()) kept.close();
    this.#kept.clear();
    await this.#refreshGrants.close();
  }

  #sourceOf({ credential, upstream }: CredentialUse): Source {
    const { source } = credential;
    if (source.kind === 'value') {
      let fixed = this.#fixed.get(source);
      if (fixed === undefined) this.#fixed.set(source, (fixed = createFixedSource(source.value)));
      return fixed;
    }
    const key = this.#keyOf(source, upstream);
    let kept = this.#kept.get(key);
    if (kept === undefined) {
      kept = this.#create(source, upstream);
      // A call may still ask for its credential after the gateway was closed: no file is watched and no token fetched then.
      if (this.#isClosed) kept.close();
      else this.#kept.set(key, kept);
    }
    kept.upstreams.add(upstream.name);
    return kept.source;
  }

  #keyOf(source: ChangingSource, upstream: UpstreamSettings): string {
    let key = this.#keys.get(source);
    if (key === undefined) this.#keys.set(source, (key = sourceKey(source, upstream)));
    return key;
  }

  #create(source: ChangingSource, upstream: UpstreamSettings): Kept {
    const { clock, random, settings, telemetry } = this.#parts;
    const upstreams = new Set<string>();
    const events = { onRenewal: this.#renewalReporter(upstreams) };
    if (source.kind === 'file') {
      const file = new FileSource({ ...events, ...source, clock });
      return { source: file, upstreams, close: () => file.close(), shared: null };
    }
    const { client, prefix } = source;
    const tokens = client.shared ? this.#shared : null;
    const made = new OAuthSource({
      ...events,
      clock,
      random,
      prefix,
      fetch: (unwanted, signal) =>
        tokens === null
          ? this.#fetch({ client, upstream, unwanted, signal })
          : tokens.fetch({ client, upstream, unwanted, signal }),
      readShared: async (unwanted) => (await tokens?.read({ client, unwanted })) ?? null,
      onBug: (bug) => telemetry.log.bug('a token could not be fetched', bug),
    });
    const shared =
      tokens === null ? null : { name: sharedName(settings.privacy.labelKey, client), source: made };
    const watch = this.#watchGrant(made, client.refreshTokenFile);
    const close = (): void => {
      watch?.close();
      made.close();
    };
    return { source: made, upstreams, close, shared };
  }

  /** A refresh token that somebody writes into its file is used at once where the one before had failed. */
  #watchGrant(source: OAuthSource, path: string | null): FileWatch | null {
    if (path === null) return null;
    const { clock } = this.#parts;
    const grant = this.#refreshGrants.of(path);
    const onCheck = (): void => void grant.hasChanged().then((isNew) => isNew && source.retry());
    return new FileWatch({ path, clock, onCheck });
  }

  /** Counts every renewal for each upstream, and logs the first failure of a row and its end. */
  #renewalReporter(upstreams: ReadonlySet<string>): (outcome: RenewalOutcome) => void {
    const { telemetry } = this.#parts;
    let last: RenewalOutcome = 'renewed';
    return (outcome) => {
      for (const upstream of upstreams) {
        telemetry.credentialRenewal(upstream, outcome);
        if (isGood(outcome) && !isGood(last))
          telemetry.log.info('a credential is renewed again', { upstream });
        if (!isGood(outcome) && outcome !== last)
          telemetry.log.warn('a credential could not be renewed', { upstream, fault: outcome });
      }
      last = outcome;
    };
  }
}

const isGood = (outcome: RenewalOutcome): boolean => outcome === 'renewed' || outcome === 'shared';

/** Sources with the same key are one source. The key contains secrets; an OAuth client's key includes how its endpoint is reached. */
function sourceKey(source: ChangingSource, { allowPrivateAddresses, caFile }: UpstreamSettings): string {
  const { kind, prefix } = source;
  if (kind === 'file') return JSON.stringify([kind, prefix, source.path]);
  return JSON.stringify([kind, prefix, source.client, allowPrivateAddresses, caFile]);
}

/** Names of the sources of these settings' upstreams; those of workspaces are added one by one. */
export class SourceNames {
  readonly #names = new Set<string>();
  readonly #upstreams: Settings['upstreams'];

  constructor(upstreams: Settings['upstreams']) {
    this.#upstreams = upstreams;
    for (const upstream of upstreams.values()) this.#add(upstream.credential, upstream);
  }

  addOf({ credentials }: WorkspaceSettings): void {
    for (const [name, credential] of credentials) this.#add(credential, this.#upstreams.get(name));
  }

  has(name: string): boolean {
    return this.#names.has(name);
  }

  #add(credential: UpstreamCredential | null, upstream: UpstreamSettings | undefined): void {
    if (credential === null || upstream === undefined || credential.source.kind === 'value') return;
    this.#names.add(sourceKey(credential.source, upstream));
  }
}
