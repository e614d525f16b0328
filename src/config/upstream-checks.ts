/** Rules between the values of one upstream: keys that may stand in two sections, waits, origins that must not be ours or private. */
import { checkCredential } from './credential-checks.ts';
import { defaultServer, defaultWaits } from './defaults.ts';
import { upstreamNamePattern } from './names.ts';
import { allowsInside } from '../target/address.policy.ts';
import { isLoopback, isPrivateLiteral, readOrigin, unreachableLiteral } from './origins.ts';
import { privateAddresses } from './private-addresses.ts';
import type { Finding, Path } from './problem.ts';
import type { OriginPattern } from './settings.ts';
import { checkSpeaks } from './speaks-checks.ts';
import { list, section } from './tree.ts';
import type { Section } from './tree.ts';
import { paceKeys } from './upstream-schema.ts';

/** Rules of one upstream. */
export function checkUpstream(name: string, upstream: Section, server: Section): Finding[] {
  const path: Path = ['upstreams', name];
  const found: Finding[] = [];
  if (!upstreamNamePattern.test(name)) {
    const reason = 'is not a usable upstream name';
    found.push({
      path,
      reason,
      fix: 'use up to 63 lower-case letters, digits, - and _, a letter or digit first',
    });
  }
  const limits = section(upstream['limits']);
  found.push(...givenTwice(path, upstream, limits, paceKeys, 'limits'));
  found.push(
    ...givenTwice(
      [...path, 'limits'],
      limits,
      section(limits['bucket']),
      ['capacity', 'leakPerSecond'],
      'bucket',
    ),
  );
  const ceiling =
    limits['maxWaitCeilingSeconds'] ??
    upstream['maxWaitCeilingSeconds'] ??
    server['maxWaitCeilingSeconds'] ??
    defaultWaits.maxWaitCeilingSeconds;
  found.push(
    ...waitBelowCeiling(path, upstream, ceiling),
    ...waitBelowCeiling([...path, 'limits'], limits, ceiling),
  );
  const by = upstream['bucketBy'];
  if (Array.isArray(by) && by.length > 0 && !by.includes('credential')) {
    const fix = 'add credential: two credentials never share a quota';
    found.push({ path: [...path, 'bucketBy'], reason: 'leaves credential out', fix });
  }
  found.push(...checkCredential([...path, 'credential'], upstream['credential'], privateAddresses(upstream)));
  if (upstream['account'] !== undefined && upstream['credential'] === undefined) {
    const fix = 'add the credential, or leave account out: what a client brings is a quota of its own';
    found.push({ path: [...path, 'account'], reason: 'names the quota of no credential', fix });
  }
  return [...found, ...checkSpeaks(path, upstream), ...checkOrigins(path, upstream, server)];
}

function givenTwice(
  path: Path,
  outer: Section,
  inner: Section,
  keys: readonly string[],
  name: string,
): Finding[] {
  return keys
    .filter((key) => outer[key] !== undefined && inner[key] !== undefined)
    .map((key) => ({
      path: [...path, key],
      reason: `is also given in ${name}`,
      fix: `keep one of the two`,
    }));
}

/** A default wait above the longest wait would never be reached. */
export function waitBelowCeiling(path: Path, section: Section, inherited: unknown): Finding[] {
  const [wait, ceiling] = [section['maxWaitSeconds'], section['maxWaitCeilingSeconds'] ?? inherited];
  if (typeof wait !== 'number' || typeof ceiling !== 'number' || !(wait > ceiling)) return [];
  const fix = `lower it, or raise maxWaitCeilingSeconds to at least ${wait}`;
  return [{ path: [...path, 'maxWaitSeconds'], reason: `is above maxWaitCeilingSeconds (${ceiling})`, fix }];
}

function checkOrigins(path: Path, upstream: Section, server: Section): Finding[] {
  const allowed = privateAddresses(upstream);
  return list(upstream['origins']).flatMap((text, index): Finding[] => {
    const reading = typeof text === 'string' ? readOrigin(text) : null;
    if (reading === null || reading.kind === 'fault') return [];
    const at = [...path, 'origins', index];
    const allow = 'use https and a public name, or set allowPrivateAddresses: true on this upstream';
    const { pattern } = reading;
    if (isOwnAddress(pattern, server)) {
      return [
        {
          path: at,
          reason: 'is Sluice itself',
          fix: 'name the upstream’s own origin; a loop would wait for itself',
        },
      ];
    }
    if (allowsInside(allowed)) {
      const fault = unreachableLiteral(pattern.host, allowed);
      return fault === null ? [] : [{ path: at, ...fault }];
    }
    if (pattern.scheme === 'http') return [{ path: at, reason: 'is not encrypted (http)', fix: allow }];
    if (isPrivateLiteral(pattern.host))
      return [{ path: at, reason: 'is a private or loopback address', fix: allow }];
    if (pattern.wildcard && !pattern.host.includes('.')) {
      return [
        {
          path: at,
          reason: 'has a wildcard over a whole top-level domain',
          fix: 'keep at least two labels after *.',
        },
      ];
    }
    return [];
  });
}

/** True when the origin is one of `server.publicHosts`, or this machine at one of our own ports. */
function isOwnAddress(pattern: OriginPattern, server: Section): boolean {
  const covers = (host: string): boolean =>
    pattern.wildcard ? host.split('.').slice(1).join('.') === pattern.host : host === pattern.host;
  const isPublic = list(server['publicHosts']).some((entry) => {
    const cut = typeof entry === 'string' ? /^(.*?)(?::(\d+))?$/.exec(entry.toLowerCase()) : null;
    return cut !== null && covers(cut[1] ?? '') && (cut[2] === undefined || Number(cut[2]) === pattern.port);
  });
  const ownPorts = [server['port'] ?? defaultServer.port, server['adminPort'] ?? defaultServer.adminPort];
  const bound = server['host'] ?? '0.0.0.0';
  const isHere = typeof bound === 'string' && (/^(0\.0\.0\.0|::)$/.test(bound) || isLoopback(bound));
  return (
    isPublic || (isHere && isLoopback(pattern.host) && !pattern.wildcard && ownPorts.includes(pattern.port))
  );
}
