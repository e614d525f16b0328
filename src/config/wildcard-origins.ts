/**
 * Wildcard origins that have a credential: a caller chooses the host that it is sent to. Owns the judgement of who may have a host under
 * a wildcard; which calls a wildcard covers is decided in `target/`.
 */
import { parse } from 'tldts';
import type { OriginPattern } from './origins.ts';
import { wordsOf } from '../words.policy.ts';
import type { Fault } from './problem.ts';

/**
 * Platforms whose customers have a host each, under which the platform alone responds: a credential that is sent there reaches nobody
 * else. Some are public suffixes all the same, because browsers must keep their customers' cookies apart.
 */
const platforms: ReadonlySet<string> = new Set(
  wordsOf(
    'atlassian.net cognitiveservices.azure.com freshdesk.com googleapis.com my.salesforce.com mybigcommerce.com',
    'myshopify.com okta.com openai.azure.com services.ai.azure.com snowflakecomputing.com zendesk.com',
  ),
);

/** Domains under which anybody can have a host although the Public Suffix List does not name them. */
const sharedDomains: ReadonlySet<string> = new Set(
  wordsOf(
    // Customers' hosts beside the provider's own.
    'amazonaws.com amazonaws.com.cn app.github.dev glitch.me gradio.live modal.run',
    // Tunnels, names that say an address, and collectors of requests.
    'beeceptor.com devtunnels.ms loca.lt nip.io oast.fun oastify.com pipedream.net m.pipedream.net requestcatcher.com',
    'serveo.net sslip.io webhook.site',
  ),
);

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

/** What is wrong with an origin to which a credential is sent; `null`: nothing, or nothing that is certain. */
export const wildcardFault = (pattern: OriginPattern): Fault | null =>
  isOpen(pattern, 'public')
    ? {
        reason: `sends a credential to every host under ${pattern.host}, where anybody can have one`,
        fix: 'name the hosts that are meant, without *., or leave the credential out: clients then bring their own',
      }
    : null;

/** True for a wildcard whose hosts belong to these. */
export const isOpen = ({ wildcard, host }: OriginPattern, to: HostOwners): boolean =>
  wildcard && hostOwners(host) === to;
