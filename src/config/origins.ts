/**
 * Origins of upstreams (`https://api.openai.com`, `https://*.myshopify.com`): how they are spelt, and which of them may be named. Whether a
 * call's target matches a pattern is decided in `target/`, and addresses found by name resolution are judged when connecting: only
 * literals can be judged here.
 */
import ipaddr from 'ipaddr.js';
import { parse } from 'tldts';
import { addressCheck, allowsInside, isPublicAddress } from '../target/address.policy.ts';
import type { PrivateAddresses } from '../target/address.policy.ts';
import { wordsOf } from '../words.policy.ts';
import { readText, type Fault } from './values.ts';

export interface OriginPattern {
  readonly scheme: 'https' | 'http';
  /** Host name, lower case; for a wildcard the part after `*.`. */
  readonly host: string;
  readonly wildcard: boolean;
  /** Explicit port, or the scheme's default. */
  readonly port: number;
}

const fault = (reason: string, fix: string): Fault => ({ reason, fix });
const example = 'write scheme and host only, such as https://api.example.com or https://*.example.com';

/** Scheme, perhaps `*.`, host and perhaps a port: no user information, path, query or fragment; a lone `/` at the end is accepted. */
const form = /^(https?):\/\/(\*\.)?(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?\/?$/i;

/** Parses one origin. The host comes back as WHATWG `URL` spells it (lower case, IPv6 in brackets), without `*.`. */
function readOrigin(text: string): OriginPattern | Fault | null {
  const [, written = '', star, host = '', port] = form.exec(text) ?? [];
  const scheme = written.toLowerCase() === 'http' ? 'http' : 'https';
  const hostname = URL.parse(`${scheme}://${host}:${port ?? usualPorts[scheme]}`)?.hostname;
  if (host === '' || hostname === undefined) return null;
  if (hostname.endsWith('.')) return fault('has a host that ends with a dot', 'leave the last dot out');
  if (hostname !== host.toLowerCase())
    return fault('spells an address in an unusual way', `write it as ${scheme}://${hostname}`);
  const wildcard = star !== undefined;
  if (wildcard && literalAddress(hostname) !== null)
    return fault('has a wildcard before an address', 'write the address without *.');
  return { scheme, host: hostname, wildcard, port: port === undefined ? usualPorts[scheme] : Number(port) };
}

const usualPorts = { https: 443, http: 80 } as const;

/** An origin to which calls of an upstream may go. */
export const origin = readText(fault('is not scheme and host of an origin', example), readOrigin).describe(
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

/** Whether a host outside is reached without encryption or is spelt as a private address. */
export function insideFault(scheme: string, host: string, allowed: PrivateAddresses): Fault | null {
  const address = literalAddress(host);
  if (!allowsInside(allowed)) {
    const fix = 'use https and a public name, or set allowPrivateAddresses: true on this upstream';
    if (scheme === 'http') return fault('is not encrypted (http)', fix);
    const isOutside = address === null ? !isLoopback(host) : isPublicAddress(address);
    return isOutside ? null : fault('is a private or loopback address', fix);
  }
  if (address === null || addressCheck(allowed)(address)) return null;
  const elsewhere = 'add its range there, or name another origin';
  if (addressCheck(true)(address))
    return fault('is an address outside the ranges of allowPrivateAddresses', elsewhere);
  return fault(
    'is an address that is never connected to',
    'name another: link-local addresses, those of metadata services and reserved ones stay closed, whatever allowPrivateAddresses says',
  );
}

/** What is wrong with an origin of an upstream of this server; `null`: calls may go there. */
export function originFault(pattern: OriginPattern, allowed: PrivateAddresses, server: Listening) {
  if (isOwnAddress(pattern, server))
    return fault('is Sluice itself', 'name the upstream’s own origin; a loop would wait for itself');
  const inside = insideFault(pattern.scheme, pattern.host, allowed);
  const isTooWide = pattern.wildcard && !pattern.host.includes('.') && !allowsInside(allowed);
  if (inside !== null || !isTooWide) return inside;
  return fault('has a wildcard over a whole top-level domain', 'keep at least two labels after *.');
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
const platforms = wordsOf(
  'atlassian.net cognitiveservices.azure.com freshdesk.com googleapis.com my.salesforce.com mybigcommerce.com',
  'myshopify.com okta.com openai.azure.com services.ai.azure.com snowflakecomputing.com zendesk.com',
);

/** Domains under which anybody can have a host although the Public Suffix List does not name them. */
const sharedDomains = wordsOf(
  // Customers' hosts beside the provider's own.
  'amazonaws.com amazonaws.com.cn app.github.dev glitch.me gradio.live modal.run',
  // Tunnels, names that say an address, and collectors of requests.
  'beeceptor.com devtunnels.ms loca.lt nip.io oast.fun oastify.com pipedream.net m.pipedream.net requestcatcher.com',
  'serveo.net sslip.io webhook.site',
);

/** The same, and the names of regions right under them: `*.westeurope.cloudapp.azure.com`. */
const sharedByRegion = /(^|^[^.]*\.)(azurecontainerapps\.io|cloudapp\.azure\.com)$/;

/**
 * Who may have a host under a wildcard with a credential: anybody (`public`), customers of a platform that alone responds there
 * (`platform`), or whoever the owner of the domain lets (`owner`). `null`: it is no wildcard.
 */
export function hostOwners({ wildcard, host }: OriginPattern): 'public' | 'platform' | 'owner' | null {
  if (!wildcard) return null;
  if (platforms.includes(host)) return 'platform';
  // Also where each name right under the domain is a suffix of its own: `*.compute.amazonaws.com` of the list.
  const isSuffix = [host, `any-name.${host}`].some((name) => {
    const { publicSuffix, isIcann, isPrivate } = parse(name, { allowPrivateDomains: true });
    return publicSuffix === name && (isIcann === true || isPrivate === true);
  });
  return isSuffix || sharedDomains.includes(host) || sharedByRegion.test(host) ? 'public' : 'owner';
}

/** What is wrong with an origin to which a credential is sent; `null`: nothing, or nothing that is certain. */
export const wildcardFault = (pattern: OriginPattern): Fault | null =>
  hostOwners(pattern) === 'public'
    ? fault(
        `sends a credential to every host under ${pattern.host}, where anybody can have one`,
        'name the hosts that are meant, without *., or leave the credential out: clients then bring their own',
      )
    : null;
