/** Rules between the keys of a credential: one source of its value, and a token endpoint that may be asked. */
import { allowsInside, type PrivateAddresses } from '../target/address.policy.ts';
import { isPrivateLiteral, unreachableLiteral } from './origins.ts';
import type { Finding, Path } from './problem.ts';
import { section } from './tree.ts';

const sources = ['value', 'file', 'oauth'] as const;

/** Rules of the credential at `path`; one that is a text alone has none. */
export function checkCredential(path: Path, written: unknown, allowed: PrivateAddresses): Finding[] {
  if (typeof written !== 'object' || written === null || Array.isArray(written)) return [];
  const credential = section(written);
  const given = sources.filter((key) => credential[key] !== undefined);
  const found: Finding[] = [];
  if (given.length !== 1) {
    const reason = given.length === 0 ? 'has no value' : `has ${given.join(' and ')}`;
    found.push({ path, reason, fix: 'give exactly one of value, file and oauth' });
  } else if (given[0] === 'value' && credential['prefix'] !== undefined) {
    const fix = 'write it into value, which is sent as it is';
    found.push({ path: [...path, 'prefix'], reason: 'stands beside value', fix });
  }
  const { tokenUrl, shared, refreshTokenFile } = section(credential['oauth']);
  if (refreshTokenFile !== undefined && shared === false) {
    const fix = 'leave shared out: a refresh token is used by one replica, for all';
    found.push({ path: [...path, 'oauth', 'shared'], reason: 'is false beside refreshTokenFile', fix });
  }
  if (typeof tokenUrl !== 'string' || tokenUrl === '') return found;
  const fault = tokenUrlFault(tokenUrl, allowed);
  return fault === null ? found : [...found, { path: [...path, 'oauth', 'tokenUrl'], ...fault }];
}

function tokenUrlFault(text: string, allowed: PrivateAddresses): Pick<Finding, 'reason' | 'fix'> | null {
  if (!URL.canParse(text)) return { reason: 'is not an absolute URL', fix: 'write https://host/path' };
  const url = new URL(text);
  if (url.protocol !== 'https:' && url.protocol !== 'http:')
    return { reason: 'is neither https nor http', fix: 'write https://host/path' };
  if (url.username !== '' || url.password !== '' || url.hash !== '')
    return { reason: 'holds user information or a fragment', fix: 'use clientId and clientSecret' };
  if (allowsInside(allowed)) return unreachableLiteral(url.hostname, allowed);
  const fix = 'use https and a public name, or set allowPrivateAddresses: true on this upstream';
  if (url.protocol === 'http:') return { reason: 'is not encrypted (http)', fix };
  return isPrivateLiteral(url.hostname) ? { reason: 'is a private or loopback address', fix } : null;
}
