/** What a person who started Sluice at a terminal wants to know first. */
import type { AddressInfo } from 'node:net';
import type { Settings } from '../config/settings.ts';
import { configurationWarnings } from '../config/warnings.ts';

export interface Addresses {
  readonly dataAddress: AddressInfo;
  readonly adminAddress: AddressInfo;
}

/**
 * Where to call, where to look, and what will surprise.
 * @param now wall clock, milliseconds
 */
export function announcement(
  settings: Settings,
  { dataAddress, adminAddress }: Addresses,
  now: number,
): string {
  const { size } = settings.workspaces;
  const data = originOf(dataAddress);
  return [
    `calls:     ${[...settings.upstreams.keys()].map((name) => `${data}/via/${name}/…`).join(' ')}`,
    `           ${data}/proxy?target=…, for ${size === 1 ? '1 workspace' : `${size} workspaces`}`,
    `live page: ${originOf(adminAddress)}/`,
    ...configurationWarnings(settings, now).map((text) => `warning:   ${text}`),
  ].join('\n');
}

/** As a browser on this machine can open it. */
function originOf({ address, port }: AddressInfo): string {
  if (address === '0.0.0.0' || address === '::') return `http://localhost:${port}`;
  return `http://${address.includes(':') ? `[${address}]` : address}:${port}`;
}
