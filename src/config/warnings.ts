/**
 * Warnings about a usable configuration that probably does not say what its author meant. Owns the words for the operator's own
 * terminal, with names of the file; refuses nothing. Logs may not hold workspace ids: they get the number of workspaces for
 * which {@link hasNoValidKey} is true, and none of these words.
 */
import { hostOwners } from './origins.ts';
import type { Settings, UpstreamSettings, WorkspaceSettings } from './settings.ts';

/** Warnings about settings that work but are probably not meant, one clause each. `now`: milliseconds since the epoch. */
export function configurationWarnings(settings: Settings, now: number): string[] {
  const { privacy, upstreams, workspaces } = settings;
  const ofWorkspaces = new Set([...workspaces.values()].flatMap((each) => [...each.credentials.keys()]));
  return [
    ...(privacy.labelKeyGenerated
      ? ['privacy.labelKey is not set: workspace labels change with every start']
      : ofLabelKey(settings)),
    ...(workspaces.size === 0 ? ['workspaces is empty: nobody can call'] : []),
    ...[...workspaces.values()]
      .filter((workspace) => hasNoValidKey(workspace, now))
      .map(({ id }) => `workspace ${id} has no valid key: nobody can call with this workspace`),
    ...[...upstreams.values()]
      .filter(({ name, credential }) => credential !== null || ofWorkspaces.has(name))
      .flatMap(({ name, origins }) => origins.map((pattern) => ({ name, pattern })))
      .filter(({ pattern }) => hostOwners(pattern) === 'owner')
      .map(
        ({ name, pattern: { host } }) =>
          `upstream ${name}: a caller may have the credential sent to any host under ${host}; name the hosts, unless nobody else can have one there`,
      ),
    ...[...upstreams.values()]
      .filter(sharesQuotaOfShops)
      .map(
        ({ name }) =>
          `upstream ${name}: all hosts under its wildcard share one quota; if the platform counts per shop, add bucketBy: [credential, host]`,
      ),
    ...[...upstreams.values()].flatMap(ofUncountedLimits),
  ];
}

/** The kind whose calls alone are counted by a limit. */
const countedKinds = {
  tokensPerMinute: 'language-model',
  tokensPerDay: 'language-model',
  bucket: 'commerce',
  cost: 'commerce',
} as const;

/** Limits that are read and hold nothing, because calls to an upstream of this kind are not counted by them. */
function ofUncountedLimits({ name, kind, limits }: UpstreamSettings): string[] {
  const written = { ...limits, bucket: limits.isDefault.bucket ? null : limits.bucket };
  return Object.entries(countedKinds)
    .filter(([key, of]) => of !== kind && written[key as keyof typeof countedKinds] !== null)
    .map(
      ([key, of]) => `upstream ${name}: limits.${key} holds nothing: only the kind ${of} is counted by it`,
    );
}

/** One credential for many shops, whose calls then wait for one another also where the platform counts per shop. */
const sharesQuotaOfShops = ({ kind, origins, credential, bucketBy, dialect }: UpstreamSettings): boolean =>
  kind === 'commerce' &&
  credential !== null &&
  dialect === null &&
  !bucketBy.includes('host') &&
  origins.some(({ wildcard }) => wildcard);

/** A label key that can be guessed: the warning fits a log, too, because it shows nothing of the key. */
export function ofLabelKey({ privacy }: Pick<Settings, 'privacy'>): string[] {
  const weakness = privacy.labelKeyGenerated ? null : labelKeyWeakness(privacy.labelKey);
  const words =
    'whoever guesses it can read from labels who calls; use a random one, for instance of: openssl rand -hex 32';
  return weakness === null ? [] : [`privacy.labelKey ${weakness}: ${words}`];
}

/** Words of documentation and of people. */
const plainWord = /label|secret|sluice|example|laptop|password|changeme|default|development|testing/i;
/** Letters of one case throughout, and at most a number behind them: random texts have digits or both cases in between. */
const onlyWords = /^(?:[^0-9A-Z]+|[^0-9a-z]+)\d{0,8}$/;

/**
 * Why a label key is weak: whoever can guess it finds out from labels, and from Redis, who calls. `null` = nothing suggests that it is.
 * A random text passes from 22 characters of base64 or 32 hexadecimal digits on (128 bits).
 */
export function labelKeyWeakness(key: string): string | null {
  if (/^(.{8,})\1/s.test(key)) return 'repeats itself';
  if (plainWord.test(key) || onlyWords.test(key)) return 'is made of words';
  const counts = [...Map.groupBy(key, (character) => character).values()].map(({ length }) => length);
  // If its characters were drawn by chance, as often as they stand in it: for random texts a little less than what they really hold.
  const bits = counts.reduce((sum, count) => sum + count * Math.log2(key.length / count), 0);
  return bits < 72 ? 'is too short or has too few different characters' : null;
}

/** True when no key can call with a workspace, at `now`. */
export const hasNoValidKey = ({ keys }: WorkspaceSettings, now: number): boolean =>
  keys.every(({ expiresAt }) => expiresAt !== null && expiresAt <= now);
