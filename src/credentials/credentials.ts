/**
 * READ FIRST of this folder. Upstream credentials as they are now: fixed values, files that are read again, tokens that are
 * renewed. One source serves every upstream and workspace that is configured with the same file or the same OAuth client.
 *
 * Owns: the sources' lives over reloads, and what is reported of them. Does not own: which credential a call has
 * (`target/route.ts`), who waits for one and how long (`journey/`).
 * Keeps: no secret and no token is logged, counted, or part of a failure.
 */
import { every, filePollMs, type Clock, type Random } from '../clock.ts';
import type { CredentialSource, Settings, UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import type { ObservedCredential, RenewalOutcome } from '../telemetry/events.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { ChangingSource, type CredentialState } from './changing-source.ts';
import { RefreshGrant } from './refresh-grant.ts';
import { fetchForAll, type SharedToken } from './shared-tokens.ts';
import { askForToken, type FetchToken, type SendTokenRequest } from './token-endpoint.ts';
import { readCredential } from './token-file.ts';

export type { CredentialState } from './changing-source.ts';

/** A credential and the upstream it is sent to. */
export interface CredentialUse {
  readonly credential: UpstreamCredential;
  readonly upstream: UpstreamSettings;
}

interface CredentialParts {
  readonly settings: Pick<Settings, 'privacy' | 'upstreams'>;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Pick<Telemetry, 'count' | 'log'>;
  readonly send: SendTokenRequest;
  /** Shares tokens with the other replicas; `null` = there are none. */
  readonly createMap: CreateMap | null;
}

type Changing = Exclude<CredentialSource, { kind: 'value' }>;

interface Kept {
  readonly source: ChangingSource;
  /** Names of the upstreams that it is sent to. */
  readonly upstreams: Set<string>;
  readonly close: () => void;
  /** Since the last reload. */
  isUsed: boolean;
}

export class Credentials {
  readonly #parts: CredentialParts;
  /**
   * The grants of this process, by the file that keeps their refresh token. A grant exists longer than a source, because a reload must not
   * lose an exchange that is under way.
   */
  readonly #grants = new Map<string, RefreshGrant>();
  /** Fetches at the endpoint for all replicas; `null` = there are no others. */
  readonly #fetchForAll: FetchToken | null;
  /** Sources by their `sourceKey`. The keys contain secrets, and stay in memory. */
  readonly #kept = new Map<string, Kept>();
  readonly #keys = new WeakMap<CredentialSource, string>();
  #isClosed = false;

  constructor(parts: CredentialParts) {
    const { createMap, settings } = parts;
    const { labelKey } = settings.privacy;
    this.#parts = parts;
    const map = createMap?.<SharedToken>({ name: 'token.3' });
    this.#fetchForAll =
      map === undefined ? null : fetchForAll({ ...parts, labelKey, map, fetch: this.#fetch });
    this.reload(settings.upstreams);
  }

  /** The value to send now. Asking for one that is not there begins to fetch it. */
  now(use: CredentialUse): CredentialState {
    const { source } = use.credential;
    if (source.kind === 'value') return { kind: 'usable', value: source.value, version: 0 };
    return this.#sourceOf(source, use.upstream).now();
  }

  /** See {@link ChangingSource.refused}; a refusal of a fixed value is final. */
  refused({ credential: { source }, upstream }: CredentialUse, version: number): boolean {
    return source.kind !== 'value' && this.#sourceOf(source, upstream).refused(version);
  }

  /** Credentials in use whose end is known. */
  observed(): readonly ObservedCredential[] {
    return [...this.#kept.values()].flatMap(({ source, upstreams }) => {
      const expiresInMs = source.expiresInMs();
      return expiresInMs === null ? [] : [...upstreams].map((upstream) => ({ upstream, expiresInMs }));
    });
  }

  /** Takes over new settings: sources that nobody has used since the settings before end, and credentials of upstreams are fetched. */
  reload(upstreams: Settings['upstreams']): void {
    for (const [key, kept] of this.#kept) {
      for (const name of kept.upstreams) if (!upstreams.has(name)) kept.upstreams.delete(name);
      if (!kept.isUsed) {
        kept.close();
        this.#kept.delete(key);
      }
      kept.isUsed = false;
    }
    for (const upstream of upstreams.values())
      if (upstream.credential !== null) this.now({ credential: upstream.credential, upstream });
  }

  /** Resolves when no refresh token is under way any more: its response may be the only one that names the next. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const kept of this.#kept.values()) kept.close();
    this.#kept.clear();
    await Promise.all([...this.#grants.values()].map((grant) => grant.close()));
  }

  /** Fetches at the endpoint, for this replica alone. */
  readonly #fetch: FetchToken = async (input) => {
    const { refreshTokenFile: path } = input.client;
    if (path === null) return (await askForToken(this.#parts, input)).fetched;
    const grant = this.#grants.get(path) ?? new RefreshGrant({ ...this.#parts, path });
    this.#grants.set(path, grant);
    return grant.fetch(input);
  };

  #sourceOf(source: Changing, upstream: UpstreamSettings): ChangingSource {
    const key = this.#keys.get(source) ?? sourceKey(source, upstream);
    this.#keys.set(source, key);
    let kept = this.#kept.get(key);
    if (kept === undefined) {
      kept = this.#create(source, upstream);
      // A call may still ask for its credential after the gateway was closed: no file is watched and no token fetched then.
      if (this.#isClosed) kept.close();
      else this.#kept.set(key, kept);
    }
    kept.isUsed = true;
    kept.upstreams.add(upstream.name);
    return kept.source;
  }

  #create(source: Changing, upstream: UpstreamSettings): Kept {
    const { clock, telemetry } = this.#parts;
    const upstreams = new Set<string>();
    const isShared = source.kind === 'oauth' && source.client.shared;
    const fetch = (isShared ? this.#fetchForAll : null) ?? this.#fetch;
    let last: RenewalOutcome = 'renewed';
    /** Counts every renewal for each upstream, and logs the first failure of a row and its end. */
    const onRenewal = (outcome: RenewalOutcome): void => {
      for (const upstream of upstreams) {
        telemetry.count('sluice_credential_renewals_total', { upstream, outcome });
        if (isGood(outcome) && !isGood(last))
          telemetry.log.info('a credential is renewed again', { upstream });
        if (!isGood(outcome) && outcome !== last)
          telemetry.log.warn('a credential could not be renewed', { upstream, fault: outcome });
      }
      last = outcome;
    };
    const made = new ChangingSource({
      ...this.#parts,
      prefix: source.prefix,
      fetch: (unwanted, signal) =>
        source.kind === 'file'
          ? readCredential(source.path, clock)
          : fetch({ client: source.client, upstream, unwanted, signal }),
      onRenewal,
      onBug: (bug) => telemetry.log.bug('a credential could not be fetched', bug),
    });
    // A file that says what it said before changes nothing.
    const isFile = source.kind === 'file';
    const stopWatching = isFile ? every(clock, filePollMs, () => made.retry()) : () => {};
    return {
      source: made,
      upstreams,
      isUsed: true,
      close: () => {
        stopWatching();
        made.close();
      },
    };
  }
}

const isGood = (outcome: RenewalOutcome): boolean => outcome === 'renewed' || outcome === 'shared';

/** Sources with the same key are one source. The key contains secrets; an OAuth client's key includes how its endpoint is reached. */
function sourceKey(source: Changing, { allowPrivateAddresses, caFile }: UpstreamSettings): string {
  const { kind, prefix } = source;
  return JSON.stringify(
    kind === 'file'
      ? [kind, prefix, source.path]
      : [kind, prefix, source.client, allowPrivateAddresses, caFile],
  );
}
