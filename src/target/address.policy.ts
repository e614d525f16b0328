/**
 * May a connection be opened to this address?
 *
 * Owns: the classification of IP addresses. Does not own: resolving names, and the per-upstream exception for
 * private addresses (both `dispatch/agents.ts`). Keeps: default deny; only what is known to be public unicast passes,
 * so a range that nobody thought of is closed.
 */
import ipaddr from 'ipaddr.js';

/** Public by range, internal by use: Azure's host agent, reachable from every virtual machine there. */
const azureHostAgent = '168.63.129.16';

/** All of IPv6 that IANA assigns as global unicast. `::/96` (IPv4-compatible) and unassigned space are outside. */
const globalUnicast = ipaddr.IPv6.parseCIDR('2000::/3');

/** Special ranges inside 2000::/3 that the library may call something else in another release. */
const specialInsideGlobal = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'].map((range) =>
  ipaddr.IPv6.parseCIDR(range),
);

const isPublicV4 = (address: ipaddr.IPv4): boolean =>
  address.range() === 'unicast' && address.toString() !== azureHostAgent;

const isPublicV6 = (address: ipaddr.IPv6): boolean =>
  address.match(globalUnicast) &&
  !specialInsideGlobal.some((range) => address.match(range)) &&
  address.range() === 'unicast';

/** The address in standard notation; `null` for anything else. A mapped IPv4 address is the address inside it. */
function read(address: string): ipaddr.IPv4 | ipaddr.IPv6 | null {
  if (address.includes('%')) return null;
  const isStandard =
    ipaddr.IPv4.isValidFourPartDecimal(address) || (address.includes(':') && ipaddr.IPv6.isValid(address));
  return isStandard ? ipaddr.process(address) : null;
}

/**
 * True when the address is public unicast. Everything else is denied: private, loopback, link-local (cloud metadata),
 * shared, documentation, benchmarking, multicast, translation prefixes that embed an IPv4 address, and text that is
 * not an address in standard notation. A mapped IPv4 address is judged by the address inside it.
 *
 * @param text Literal as a resolver or a URL's host gives it; brackets are not accepted, a zone is denied.
 */
export function isPublicAddress(text: string): boolean {
  const address = read(text);
  if (address instanceof ipaddr.IPv4) return isPublicV4(address);
  return address !== null && isPublicV6(address);
}

/** Where clouds serve credentials of the machine, outside the link-local ranges: Azure, Alibaba, Oracle, AWS. */
const metadata = new Set([azureHostAgent, '100.100.100.200', '192.0.0.192', 'fd00:ec2::254']);

/** What an upstream inside one's own network may have. */
const inside = new Set(['private', 'loopback', 'carrierGradeNat', 'uniqueLocal']);

/**
 * Which addresses beside public ones an upstream may have: none, all inside, or those of the named ranges
 * (`10.0.0.0/8`, `fd00::/8`, single addresses).
 */
export type PrivateAddresses = boolean | readonly string[];

/** True when addresses inside are allowed at all: then `http://` is, too. */
export const allowsInside = (allowed: PrivateAddresses): boolean =>
  typeof allowed === 'boolean' ? allowed : allowed.length > 0;

type Range = readonly [ipaddr.IPv4 | ipaddr.IPv6, number];

function readRange(text: string): Range | null {
  const cut = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text);
  const address = read(cut?.[1] ?? '');
  if (cut === null || address === null) return null;
  const whole = address.kind() === 'ipv4' ? 32 : 128;
  const bits = cut[2] === undefined ? whole : Number(cut[2]);
  return bits <= whole ? [address, bits] : null;
}

const isInRange = (address: ipaddr.IPv4 | ipaddr.IPv6, [from, bits]: Range): boolean =>
  address.kind() === from.kind() && address.match(from as ipaddr.IPv4 & ipaddr.IPv6, bits);

/** True for an address or a range of addresses. One that is not inside opens nothing. */
export const isRange = (text: string): boolean => readRange(text) !== null;

/**
 * The check of an upstream's addresses: public ones pass, and private, loopback, shared or unique local ones as far as they
 * are allowed. Link-local addresses and those of metadata services never pass, whatever is allowed: no upstream is there, and
 * metadata services give the machine's own credentials to whoever asks.
 */
export function addressCheck(allowed: PrivateAddresses): (address: string) => boolean {
  if (!allowsInside(allowed)) return isPublicAddress;
  const ranges = typeof allowed === 'boolean' ? null : allowed.map(readRange);
  return (text) => {
    if (isPublicAddress(text)) return true;
    const address = read(text);
    if (address === null || !inside.has(address.range()) || metadata.has(address.toString())) return false;
    return ranges === null || ranges.some((range) => range !== null && isInRange(address, range));
  };
}
