/** What `INFO` says about a server: whether it can be used. Pure. */

import { troubleOf, type RedisTrouble } from './trouble.policy.ts';

export interface ServerFacts {
  /** Calls for a person: why this server cannot be used, and what to do; `null` = it can. */
  readonly fault: RedisTrouble | null;
}

/** Scripts use `ZRANGE … LIMIT`, `SET … PX` and expiries that came with it. */
const oldest = [6, 2] as const;

export function serverFacts(info: string): ServerFacts {
  const facts = new Map<string, string>();
  for (const line of info.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon > 0) facts.set(line.slice(0, colon), line.slice(colon + 1).trim());
  }
  const version = facts.get('redis_version') ?? '';
  const evictionPolicy = facts.get('maxmemory_policy') ?? null;
  return { fault: faultOf(version, evictionPolicy) };
}

function faultOf(version: string, evictionPolicy: string | null): RedisTrouble | null {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (!(major > oldest[0] || (major === oldest[0] && minor >= oldest[1]))) {
    const named = version === '' ? 'of unknown version' : version;
    return {
      ...troubleOf('version'),
      advice: `Redis ${named} is too old: Sluice needs ${oldest.join('.')} or later.`,
    };
  }
  if (evictionPolicy !== null && evictionPolicy !== 'noeviction') {
    return {
      ...troubleOf('evicts'),
      advice: `Redis evicts keys (maxmemory-policy ${evictionPolicy}), also leases in use: set maxmemory-policy to noeviction.`,
    };
  }
  return null;
}
