/** Reads `allowPrivateAddresses` from the plain tree, for rules that concern several keys. */
import type { PrivateAddresses } from '../target/address.policy.ts';
import type { Section } from './tree.ts';

/** The value of an upstream's key; of the wrong type = none, the schema reports it. */
export function privateAddresses(upstream: Section): PrivateAddresses {
  const written = upstream['allowPrivateAddresses'];
  if (Array.isArray(written)) return written.filter((each) => typeof each === 'string');
  return written === true;
}
