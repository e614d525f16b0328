/**
 * Warnings about a usable configuration that probably does not say what its author meant. Owns the words for the operator's own
 * terminal, with names of the file; refuses nothing. Logs may not hold workspace ids: they get the number of workspaces for
 * which {@link hasNoValidKey} is true, and none of these words.
 */
import { labelKeyWeakness } from './names.ts';
import type { CredentialSource, Settings, UpstreamSettings, WorkspaceSettings } from './settings.ts';
import { isOpen } from './origins.ts';

/** Warnings about settings that work but are probably not meant, one clause each. `now`: milliseconds since the epoch. */
export function configurationWarnings(settings: Settings, now: number): string[] {
  const { privacy, upstreams, workspaces } = settings;
  return [
    ...(privacy.labelKeyGenerated
      ? ['privacy.labelKey is not set: workspace labels change with every start']
      : ofLabelKey(settings)),
    ...(workspaces.size === 0 ? ['workspaces is empty: nobody can call'] : []),
    ...[...workspaces.values()].flatMap((workspace) => ofKeys(workspace, now)),
    ...schemeless(settings),
    ...[...upstreams.values()].flatMap((upstream) => ofWildcards(upstream, settings)),
  ];
}

/** A label key that can be guessed: the warning fits a log, too, because it shows nothing of the key. */
export function ofLabelKey({ privacy }: Pick<Settings, 'privacy'>): string[] {
  const weakness = privacy.labelKeyGenerated ? null : labelKeyWeakness(privacy.labelKey);
  if (weakness === null) return [];
  return [
    `privacy.labelKey ${weakness}: whoever guesses it can read from labels who calls; use a random one, for instance of: openssl rand -hex 32`,
  ];
}

/** True when no key can call with a workspace, at `now`. */
export const hasNoValidKey = ({ keys }: WorkspaceSettings, now: number): boolean =>
  expiredOf(keys, now) === keys.length;

const expiredOf = (keys: WorkspaceSettings['keys'], now: number): number =>
  keys.filter(({ expiresAt }) => expiresAt !== null && expiresAt <= now).length;

function ofKeys({ id, keys }: WorkspaceSettings, now: number): string[] {
  if (keys.length === 0) return [`workspace ${id} has no key: nobody can call with this workspace`];
  const expired = expiredOf(keys, now);
  if (expired === 0) return [];
  const all = expired === keys.length ? ': nobody can call with this workspace' : '';
  return [`workspace ${id}: ${expired} of ${keys.length} keys expired${all}`];
}

/** Credentials that look like a bare token where most upstreams want a scheme before it. */
const schemeless = ({ upstreams, workspaces }: Settings): string[] =>
  [
    ...[...upstreams.values()].map(({ name, credential }) => [`upstream ${name}`, credential] as const),
    ...[...workspaces.values()].flatMap(({ id, credentials }) =>
      [...credentials].map(([name, own]) => [`workspace ${id}, upstream ${name}`, own] as const),
    ),
  ].flatMap(([path, credential]) =>
    credential?.field === 'authorization' && namesNoScheme(credential.source)
      ? [`${path}: the authorization value names no scheme; most upstreams want "Bearer …"`]
      : [],
  );

/** True when the value of the field begins with no scheme. The content of a credential's file is not known here, and passes. */
const namesNoScheme = (source: CredentialSource): boolean =>
  (source.kind === 'value' && !source.value.includes(' ')) ||
  (source.kind === 'oauth' && !source.prefix.includes(' '));

/** Wildcards with a credential whose hosts are whoever the owner of the domain lets have them. */
function ofWildcards({ name, credential, origins }: UpstreamSettings, { workspaces }: Settings): string[] {
  const open = origins.filter((pattern) => isOpen(pattern, 'owner'));
  const isInjected = () =>
    credential !== null || [...workspaces.values()].some(({ credentials }) => credentials.has(name));
  return open.length === 0 || !isInjected()
    ? []
    : open.map(
        ({ host }) =>
          `upstream ${name}: a caller may have the credential sent to any host under ${host}; name the hosts, unless nobody else can have one there`,
      );
}
