/**
 * Wildcard origins that have a credential: a caller chooses the host that it is sent to. Owns the judgement of who may have a host under
 * a wildcard; which calls a wildcard covers is decided in `target/`.
 */
import { parse } from 'tldts';
import { readOrigin } from './origins.ts';
import type { Finding } from './problem.ts';
import type { OriginPattern, Settings } from './settings.ts';
import { list, section, type Section } from './tree.ts';

/**
 * Platforms whose customers have a host each, under which the platform alone responds: a credential that is sent there reaches nobody
 * else. Some are public suffixes all the same, because browsers must keep their customers' cookies apart.
 */
const platforms: ReadonlySet<string> = new Set([
  'atlassian.net',
  'cognitiveservices.azure.com',
  'freshdesk.com',
  'googleapis.com',
  'my.salesforce.com',
  'mybigcommerce.com',
  'myshopify.com',
  'okta.com',
  'openai.azure.com',
  'services.ai.azure.com',
  'snowflakecomputing.com',
  'zendesk.com',
]);

/** Domains under which anybody can have a host although the Public Suffix List does not name them. */
const sharedDomains: ReadonlySet<string> = new Set([
  // Customers' hosts beside the provider's own.
  'amazonaws.com',
  'amazonaws.com.cn',
  'app.github.dev',
  'glitch.me',
  'gradio.live',
  'modal.run',
  // Tunnels, names that say an address, and collectors of requests.
  'beeceptor.com',
  'devtunnels.ms',
  'loca.lt',
  'nip.io',
  'oast.fun',
  'oastify.com',
  'pipedream.net',
  'm.pipedream.net',
  'requestcatcher.com',
  'serveo.net',
  'sslip.io',
  'webhook.site',
]);

/** Of these also the names of regions, right under them: `*.westeurope.cloudapp.azure.com`. */
const sharedByRegion: ReadonlySet<string> = new Set(['azurecontainerapps.io', 'cloudapp.azure.com']);

const isShared = (domain: string): boolean =>
  sharedDomains.has(domain) ||
  sharedByRegion.has(domain) ||
  sharedByRegion.has(domain.slice(domain.indexOf('.') + 1));

/**
 * Who may have a host under a domain: anybody (`public`), customers of a platform that alone responds there (`platform`), or whoever
 * the owner of the domain lets (`owner`).
 */
type HostOwners = 'public' | 'platform' | 'owner';

function hostOwners(domain: string): HostOwners {
  if (platforms.has(domain)) return 'platform';
  // Also where each name right under the domain is a suffix of its own: `*.compute.amazonaws.com` of the list.
  return isShared(domain) || isPublicSuffix(domain) || isPublicSuffix(`any-name.${domain}`)
    ? 'public'
    : 'owner';
}

/** True for what the Public Suffix List names, in its section of registries or in that of providers. */
function isPublicSuffix(name: string): boolean {
  const { publicSuffix, isIcann, isPrivate } = parse(name, { allowPrivateDomains: true });
  return publicSuffix === name && (isIcann === true || isPrivate === true);
}

/** Refuses a credential for a wildcard under which anybody can have a host: any caller could have it sent to a host of its own. */
export function checkWildcards(file: Section): Finding[] {
  const ofWorkspaces = new Set(
    Object.values(section(file['workspaces'])).flatMap((workspace) =>
      Object.keys(section(section(workspace)['credentials'])),
    ),
  );
  return Object.entries(section(file['upstreams'])).flatMap(([name, value]) => {
    const upstream = section(value);
    if (upstream['credential'] === undefined && !ofWorkspaces.has(name)) return [];
    return list(upstream['origins']).flatMap((text, index): Finding[] => {
      const reading = typeof text === 'string' ? readOrigin(text) : null;
      if (reading?.kind !== 'origin' || !isOpen(reading.pattern, 'public')) return [];
      return [
        {
          path: ['upstreams', name, 'origins', index],
          reason: `sends a credential to every host under ${reading.pattern.host}, where anybody can have one`,
          fix: 'name the hosts that are meant, without *., or leave the credential out: clients then bring their own',
        },
      ];
    });
  });
}

/** Warnings about the other wildcards with a credential, one clause each. */
export function wildcardWarnings({
  upstreams,
  workspaces,
}: Pick<Settings, 'upstreams' | 'workspaces'>): string[] {
  const ofWorkspaces = new Set(
    [...workspaces.values()].flatMap(({ credentials }) => [...credentials.keys()]),
  );
  return [...upstreams.values()]
    .filter(({ name, credential }) => credential !== null || ofWorkspaces.has(name))
    .flatMap(({ name, origins }) =>
      origins
        .filter((pattern) => isOpen(pattern, 'owner'))
        .map(
          ({ host }) =>
            `upstream ${name}: a caller may have the credential sent to any host under ${host}; name the hosts, unless nobody else can have one there`,
        ),
    );
}

const isOpen = ({ wildcard, host }: OriginPattern, to: HostOwners): boolean =>
  wildcard && hostOwners(host) === to;
