/**
 * Where this process itself listens, so that no upstream leads back to it: neither to the data port, where a call would wait
 * for itself, nor to the admin port, which is nobody's upstream.
 *
 * Owns: the comparison of an address and port with those of the process. Does not own: the other classes of addresses
 * (`target/address.policy.ts`). Keeps: the ports are known from the moment at which they are listened on.
 */
import { networkInterfaces } from 'node:os';
import type { AddressInfo } from 'node:net';
import { isSameAddress, isLoopbackAddress, isUnspecified } from '../target/address.policy.ts';

/** True when a connection to this address and port would end in this process. */
export type IsOwn = (address: string, port: number) => boolean;

export class OwnListeners {
  #listening: readonly Pick<AddressInfo, 'address' | 'port'>[] = [];

  listen(...addresses: readonly Pick<AddressInfo, 'address' | 'port'>[]): void {
    this.#listening = addresses;
  }

  /** The interfaces are read for own ports only, at each connection: a machine gets and loses addresses. */
  readonly isOwn: IsOwn = (address, port) =>
    this.#listening.some((own) => own.port === port && reaches(address, own.address));
}

function reaches(address: string, listening: string): boolean {
  if (isUnspecified(address) || isSameAddress(address, listening)) return true;
  if (!isUnspecified(listening)) return false;
  if (isLoopbackAddress(address)) return true;
  const own = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  return own.some((each) => isSameAddress(address, each.address));
}
