/**
 * Origins of upstreams (`https://api.openai.com`, `https://*.myshopify.com`): how they are spelt, and which of them may be named. Whether a
 * call's target matches a pattern is decided in `target/`, and addresses found by name resolution are judged when connecting: only
 * literals can be judged here.
 */
import ipaddr from 'ipaddr.js';
import { parse } from 'tldts';
import {
  addressCheck,
  allowsInside,
  isPublicAddress,
  type PrivateAddresses,
} from '../target/address.policy.ts';
import { wordsOf } from '../words.policy.ts';
import type { Fault } from './problem.ts';
import { readText } from './values.ts';

export interface OriginPattern {
  readonly scheme: 'https' | 'http';
  /** Host name, lower case; for a wildcard the part after `*.`. */
  readonly host: string;
  readonly wildcard: boolean;
  /** Explicit port, or the scheme's default. */
  readonly port: number;
}

type Reading = { readonly value: OriginPattern } | Fault;

const fault = (reason: string, fix: string): Fault => ({ reason, fix });
const example = 'write scheme and host only, such as https://api.example.com';

/**
 * Parses one origin. A lone `/` at the end is accepted, any other path is not. The host comes back as WHATWG `URL`
 * spells it (lower case, IPv6 in brackets); for a wildcard it is the part after `*.`.
 */
function readOrigin(text: string): Reading {
  const cut = /^([a-z][a-z0-9+.-]*):\/\/(.*)$/i.exec(text);
  if (cut === null) return fault('is not an absolute origin', example);
  const scheme = (cut[1] ?? '').toLowerCase();
  const rest = (cut[2] ?? '').replace(/\/$/, '');
  if (scheme !== 'https' && scheme !== 'http') return fault('has a scheme other than https or http', example);
  if (rest.includes('@'))
    return fault('holds user information', `${example}; credentials belong in credential`);
  if (rest.includes('#')) return fault('has a fragment', example);
  if (rest.includes('?')) return fault('has a query', example);
  if (rest.includes('/')) return fault('has a path', `${example}; the path comes with each call`);
  const wildcard = rest.startsWith('*.');
  const hostAndPort = wildcard ? rest.slice(2) : rest;
  if (hostAndPort.includes('*')) {
    return fault('has a wildcard that is not one whole leading label', 'write https://*.example.com');
  }
  return readHost(scheme, hostAndPort, wildcard);
}

function readHost(scheme: 'https' | 'http', hostAndPort: string, wildcard: boolean): Reading {
  const cut = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?$/i.exec(hostAndPort);
  if (cut === null || !URL.canParse(`${scheme}://${hostAndPort}`)) {
    return fault('has a host or port that cannot be used', `${example}; write international names as xn--…`);
  }
  const { hostname } = new URL(`${scheme}://${hostAndPort}`);
  if (hostname.endsWith('.')) return fault('has a host that ends with a dot', 'leave the last dot out');
  if (hostname !== cut[1]?.toLowerCase()) {
    return fault('spells an address in an unusual way', `write it as ${scheme}://${hostname}`);
  }
  if (wildcard && literalAddress(hostname) !== null) {
    return fault('has a wildcard before an address', 'write the address without *.');
  }
  const port = cut[2] === undefined ? (scheme === 'https' ? 443 : 80) : Number(cut[2]);
  return { value: { scheme, host: hostname, wildcard, port } };
}

/** An origin to which calls of an upstream may go. */
export const origin = readText(readOrigin).describe(
  'scheme://host[:port]; one leading "*." stands for exactly one label.',
);

/** An origin as it is written in the file. */
export function originText({ scheme, host, wildcard, port }: OriginPattern): string {
  const usual = scheme === 'https' ? 443 : 80;
  return `${scheme}://${wildcard ? '*.' : ''}${host}${port === usual ? '' : `:${port}`}`;
}

/** The address a host spells out, without brackets, or `null` for a name. */
function literalAddress(host: string): string | null {
  const bare = host.replace(/^\[|\]$/g, '');
  return ipaddr.isValid(bare) ? bare : null;
}

/** True when the host can only be this machine. */
function isLoopback(host: string): boolean {
  const address = literalAddress(host);
  if (address === null) return host === 'localhost' || host.endsWith('.localhost');
  return ipaddr.process(address).range() === 'loopback';
}

/** True when the host is spelt as an address outside the public unicast range, or is `localhost`. */
export function isPrivateLiteral(host: string): boolean {
  const address = literalAddress(host);
  return address === null ? isLoopback(host) : !isPublicAddress(address);
}

/**
 * What is wrong with a host that is spelt as an address to which no connection would be made although addresses inside are
 * allowed; `null` for a name, and for an address that is connected to.
 */
export function unreachableLiteral(host: string, allowed: PrivateAddresses): Fault | null {
  const address = literalAddress(host);
  if (address === null || addressCheck(allowed)(address)) return null;
  if (addressCheck(true)(address))
    return {
      reason: 'is an address outside the ranges of allowPrivateAddresses',
      fix: 'add its range there, or name another origin',
    };
  return {
    reason: 'is an address that is never connected to',
    fix: 'name another: link-local addresses, those of metadata services and reserved ones stay closed, whatever allowPrivateAddresses says',
  };
}

/** What is wrong with an origin of an upstream of this server; `null`: calls may go there. */
export function originFault(
  pattern: OriginPattern,
  allowed: PrivateAddresses,
  server: Listening,
): Fault | null {
  if (isOwnAddress(pattern, server))
    return fault('is Sluice itself', 'name the upstream’s own origin; a loop would wait for itself');
  if (allowsInside(allowed)) return unreachableLiteral(pattern.host, allowed);
  const allow = 'use https and a public name, or set allowPrivateAddresses: true on this upstream';
  if (pattern.scheme === 'http') return fault('is not encrypted (http)', allow);
  if (isPrivateLiteral(pattern.host)) return fault('is a private or loopback address', allow);
  return pattern.wildcard && !pattern.host.includes('.')
    ? fault('has a wildcard over a whole top-level domain', 'keep at least two labels after *.')
    : null;
}

/** Where Sluice itself is reached. */
interface Listening {
  readonly host: string;
  readonly port: number;
  readonly adminPort: number;
  readonly publicHosts: readonly string[];
}

/** True when the origin is one of `publicHosts`, or this machine at one of our own ports. */
function isOwnAddress(pattern: OriginPattern, { host, port, adminPort, publicHosts }: Listening): boolean {
  const covers = (name: string): boolean =>
    pattern.wildcard ? name.split('.').slice(1).join('.') === pattern.host : name === pattern.host;
  const isPublic = publicHosts.some((entry) => {
    const [, name = '', at] = /^(.*?)(?::(\d+))?$/.exec(entry) ?? [];
    return covers(name) && (at === undefined || Number(at) === pattern.port);
  });
  if (isPublic) return true;
  const isHere = /^(0\.0\.0\.0|::)$/.test(host) || isLoopback(host);
  return isHere && isLoopback(pattern.host) && !pattern.wildcard && [port, adminPort].includes(pattern.port);
}

// Wildcard origins that have a credential: a caller chooses the host that it is sent to.

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
