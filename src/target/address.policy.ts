/**
 * May a connection be opened to this address?
 *
 * Owns: the classification of IP addresses. Refuses to own: resolving names, and the per-upstream exception for
 * private addresses (both `dispatch/agents.ts`). Keeps: default deny; only what is known to be public unicast passes,
 * so a range that nobody thought of is closed.
 */
import ipaddr from 'ipaddr.js';

/** Public by range, internal by use: Azure's host agent, reachable from every virtual machine there. */
const azureHostAgent = '168.63.129.16';

/** All of IPv6 that IANA hands out as global unicast; keeps `::/96` (IPv4-compatible) and unassigned space out. */
const globalUnicast = ipaddr.IPv6.parseCIDR('2000::/3');

/** Special ranges inside 2000::/3 that the library may call something else in another release. */
const specialInsideGlobal = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'].map((range) =>
  ipaddr.IPv6.parseCIDR(range),
);

function isPublicV6(address: ipaddr.IPv6): boolean {
  if (address.isIPv4MappedAddress()) return isPublicV4(address.toIPv4Address());
  return (
    address.match(globalUnicast) &&
    !specialInsideGlobal.some((range) => address.match(range)) &&
    address.range() === 'unicast'
  );
}

function isPublicV4(address: ipaddr.IPv4): boolean {
  return address.range() === 'unicast' && address.toString() !== azureHostAgent;
}

/**
 * True when the address is public unicast. Everything else is denied: private, loopback, link-local (cloud metadata),
 * shared, documentation, benchmarking, multicast, translation prefixes that embed an IPv4 address, and text that is
 * not an address in standard notation. A mapped IPv4 address is judged by the address inside it.
 *
 * @param address Literal as a resolver or a URL's host gives it; brackets are not accepted, a zone is denied.
 */
export function isPublicAddress(address: string): boolean {
  if (address.includes('%')) return false;
  if (ipaddr.IPv4.isValidFourPartDecimal(address)) return isPublicV4(ipaddr.IPv4.parse(address));
  if (address.includes(':') && ipaddr.IPv6.isValid(address)) return isPublicV6(ipaddr.IPv6.parse(address));
  return false;
}

/** Where clouds serve credentials of the machine, outside the link-local ranges: Azure, Alibaba, Oracle, AWS. */
const metadata = new Set([azureHostAgent, '100.100.100.200', '192.0.0.192', 'fd00:ec2::254']);

/** What an upstream inside one's own network may have. */
const inside = new Set(['private', 'loopback', 'carrierGradeNat', 'uniqueLocal']);

/**
 * True when an upstream with `allowPrivateAddresses` may be at the address: public, or private, loopback, shared or unique
 * local. Link-local and the addresses of metadata services stay closed: nothing that is an upstream is there, and what
 * is there hands out the machine's own credentials.
 */
export function isPublicOrInside(address: string): boolean {
  if (isPublicAddress(address)) return true;
  if (!ipaddr.IPv4.isValidFourPartDecimal(address) && !ipaddr.IPv6.isValid(address)) return false;
  if (address.includes('%')) return false;
  const parsed = ipaddr.process(address);
  return inside.has(parsed.range()) && !metadata.has(parsed.toString());
}
