/**
 * Reads an origin of the configuration (`https://api.openai.com`, `https://*.myshopify.com`) into a pattern. Owns its
 * spelling; whether a call's target matches a pattern is decided in `target/`, and addresses found by name resolution
 * are judged when connecting. Only literals can be judged here.
 */
import ipaddr from 'ipaddr.js';
import { addressCheck, isPublicAddress, type PrivateAddresses } from '../target/address.policy.ts';
import type { Finding } from './problem.ts';
import type { OriginPattern } from './settings.ts';

export type OriginReading =
  | { readonly kind: 'origin'; readonly pattern: OriginPattern }
  | { readonly kind: 'fault'; readonly reason: string; readonly fix: string };

const fault = (reason: string, fix: string): OriginReading => ({ kind: 'fault', reason, fix });
const example = 'write scheme and host only, such as https://api.example.com';

/**
 * Parses one origin. A lone `/` at the end is accepted, any other path is not. The host comes back as WHATWG `URL`
 * spells it (lower case, IPv6 in brackets); for a wildcard it is the part after `*.`.
 */
export function readOrigin(text: string): OriginReading {
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

function readHost(scheme: 'https' | 'http', hostAndPort: string, wildcard: boolean): OriginReading {
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
  return { kind: 'origin', pattern: { scheme, host: hostname, wildcard, port } };
}

/** The address a host spells out, without brackets, or `null` for a name. */
function literalAddress(host: string): string | null {
  const bare = host.replace(/^\[|\]$/g, '');
  return ipaddr.isValid(bare) ? bare : null;
}

/** True when the host can only be this machine. */
export function isLoopback(host: string): boolean {
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
export function unreachableLiteral(
  host: string,
  allowed: PrivateAddresses,
): Pick<Finding, 'reason' | 'fix'> | null {
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
