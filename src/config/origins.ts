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

const fault = (reason: string, fix: string): Fault => ({ reason, fix });
const example = 'write scheme and host only, such as https://api.example.com';

/** What must not stand behind the scheme. */
const misplaced: readonly (readonly [form: RegExp, reason: string, fix: string])[] = [
  [/@/, 'holds user information', `${example}; credentials belong in credential`],
  [/#/, 'has a fragment', example],
  [/\?/, 'has a query', example],
  [/\//, 'has a path', `${example}; the path comes with each call`],
  [/(?!^)\*|^\*(?!\.)/, 'has a wildcard that is not one whole leading label', 'write https://*.example.com'],
];

/**
 * Parses one origin. A lone `/` at the end is accepted, any other path is not. The host comes back as WHATWG `URL`
 * spells it (lower case, IPv6 in brackets); for a wildcard it is the part after `*.`.
 */
function readOrigin(text: string): OriginPattern | Fault | null {
  const [, written = '', behind = ''] = /^([a-z][a-z0-9+.-]*):\/\/(.*)$/i.exec(text) ?? [];
  if (written === '') return null;
  const scheme = written.toLowerCase();
  if (scheme !== 'https' && scheme !== 'http') return fault('has a scheme other than https or http', example);
  const rest = behind.replace(/\/$/, '');
  for (const [form, reason, fix] of misplaced) if (form.test(rest)) return fault(reason, fix);
  const wildcard = rest.startsWith('*.');
  const hostAndPort = wildcard ? rest.slice(2) : rest;
  const [, host, port] = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?$/i.exec(hostAndPort) ?? [];
  const url = URL.parse(`${scheme}://${hostAndPort}`);
  if (host === undefined || url === null)
    return fault('has a host or port that cannot be used', `${example}; write international names as xn--…`);
  const { hostname } = url;
  if (hostname.endsWith('.')) return fault('has a host that ends with a dot', 'leave the last dot out');
  if (hostname !== host.toLowerCase())
    return fault('spells an address in an unusual way', `write it as ${scheme}://${hostname}`);
  if (wildcard && literalAddress(hostname) !== null)
    return fault('has a wildcard before an address', 'write the address without *.');
  return { scheme, host: hostname, wildcard, port: port === undefined ? usualPorts[scheme] : Number(port) };
}

const usualPorts = { https: 443, http: 80 } as const;

/** An origin to which calls of an upstream may go. */
export const origin = readText(fault('is not an absolute origin', example), readOrigin).describe(
  'scheme://host[:port]; one leading "*." stands for exactly one label.',
);

/** An origin as it is written in the file. */
export function originText({ scheme, host, wildcard, port }: OriginPattern): string {
  return `${scheme}://${wildcard ? '*.' : ''}${host}${port === usualPorts[scheme] ? '' : `:${port}`}`;
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
function isPrivateLiteral(host: string): boolean {
  const address = literalAddress(host);
  return address === null ? isLoopback(host) : !isPublicAddress(address);
}

/**
 * What is wrong with a host that is spelt as an address to which no connection would be made although addresses inside are
 * allowed; `null` for a name, and for an address that is connected to.
 */
function unreachableLiteral(host: string, allowed: PrivateAddresses): Fault | null {
  const address = literalAddress(host);
  if (address === null || addressCheck(allowed)(address)) return null;
  return addressCheck(true)(address)
    ? fault(
        'is an address outside the ranges of allowPrivateAddresses',
        'add its range there, or name another origin',
      )
    : fault(
        'is an address that is never connected to',
        'name another: link-local addresses, those of metadata services and reserved ones stay closed, whatever allowPrivateAddresses says',
      );
}

/** Whether a host outside is reached without encryption or is spelt as a private address. */
export function insideFault(scheme: string, host: string, allowed: PrivateAddresses): Fault | null {
  if (allowsInside(allowed)) return unreachableLiteral(host, allowed);
  const fix = 'use https and a public name, or set allowPrivateAddresses: true on this upstream';
  if (scheme === 'http') return fault('is not encrypted (http)', fix);
  return isPrivateLiteral(host) ? fault('is a private or loopback address', fix) : null;
}

/** What is wrong with an origin of an upstream of this server; `null`: calls may go there. */
export function originFault(
  pattern: OriginPattern,
  allowed: PrivateAddresses,
  server: Listening,
): Fault | null {
  if (isOwnAddress(pattern, server))
    return fault('is Sluice itself', 'name the upstream’s own origin; a loop would wait for itself');
  const isTooWide = pattern.wildcard && !pattern.host.includes('.') && !allowsInside(allowed);
  return (
    insideFault(pattern.scheme, pattern.host, allowed) ??
    (isTooWide
      ? fault('has a wildcard over a whole top-level domain', 'keep at least two labels after *.')
      : null)
  );
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
  const isPublic = publicHosts.some((entry) => {
    const [, name = '', at] = /^(.*?)(?::(\d+))?$/.exec(entry) ?? [];
    const covered = pattern.wildcard ? name.split('.').slice(1).join('.') : name;
    return covered === pattern.host && (at === undefined || Number(at) === pattern.port);
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
    ? fault(
        `sends a credential to every host under ${pattern.host}, where anybody can have one`,
        'name the hosts that are meant, without *., or leave the credential out: clients then bring their own',
      )
    : null;

/** True for a wildcard whose hosts belong to these. */
export const isOpen = ({ wildcard, host }: OriginPattern, to: HostOwners): boolean =>
  wildcard && hostOwners(host) === to;
