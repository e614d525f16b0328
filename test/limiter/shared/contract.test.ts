/** The limiter over a log in memory keeps what every store promises. */
import { replicaId } from '../../../src/ids.ts';
import { defaultLeaseMs } from '../../../src/limiter/limiter.ts';
import { SharedLimiter } from '../../../src/limiter/shared/limiter.ts';
import type { LogEvent } from '../../../src/limiter/shared/state.ts';
import { createStores, type StoreParts, type Stores } from '../../../src/limiter/stores.ts';
import { MemoryLog } from '../../../src/log/memory-log.ts';
import { MemoryLaneGuard } from '../../support/memory-lane-guard.ts';
import { storeContract } from '../contract.ts';

const replica = replicaId('alone');

function create(parts: StoreParts): Stores {
  const { clock, listener, leaseMs = defaultLeaseMs } = parts;
  const limiter = new SharedLimiter({
    clock,
    listener,
    leaseMs,
    replica,
    guard: new MemoryLaneGuard(clock),
    restoreSends: async () => {},
    whenDown: 'deny',
    replicas: () => 1,
    onLeaseLost() {},
    onFailure: (failure) => {
      throw failure;
    },
    openLog: () => new MemoryLog<LogEvent>({ clock, replica }),
  });
  const stores = createStores(parts);
  return {
    ...stores,
    limiter,
    async close() {
      await limiter.close();
      await stores.close();
    },
  };
}

storeContract('log in memory', {
  begin: async () => null,
  end: async () => {},
  clear: async () => {},
  options: { create },
});
