/** Builds the repeats of one process; with Redis, their responses are shared with the other replicas. */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { MemoryMap, type CreateMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { claimCodec, type Claim } from './claim.ts';
import { Claims } from './claims.ts';
import { LeftCalls, type Offers } from './left-calls.ts';
import { Repeats } from './repeats.ts';

export interface StartParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Pick<Telemetry, 'replayed' | 'joined' | 'madeAgain' | 'log'>;
  /** As configured now. */
  readonly settings: () => Settings;
  /** `null` = there are no other replicas. */
  readonly createMap: CreateMap | null;
}

export function startRepeats({ clock, random, telemetry, settings, createMap }: StartParts): Repeats {
  const replica = random.hex(8);
  const meanwhile = new MemoryMap<Offers>(clock);
  const claims = createMap?.<Claim>({ name: 'repeat.4', codec: claimCodec }) ?? new MemoryMap<Claim>(clock);
  const left = createMap?.<Offers>({ name: 'left.4' }) ?? meanwhile;
  return new Repeats({
    clock,
    settings: () => settings().idempotency,
    replica,
    isAlone: createMap === null,
    claims: new Claims({
      clock,
      map: claims,
      replica,
      onMadeAgain: (upstream) => telemetry.madeAgain(upstream),
      onUnreadable: once((upstream) =>
        telemetry.log.warn(
          'a kept response in Redis cannot be opened: use one privacy.labelKey for all replicas, and nothing else in their Redis',
          { upstream },
        ),
      ),
    }),
    left: new LeftCalls({ clock, replica, map: left, meanwhile }),
    onReplayed: (upstream) => telemetry.replayed(upstream),
    onJoined: (upstream) => telemetry.joined(upstream),
  });
}

/** Passes on the first report only. */
function once(report: (upstream: string) => void): (upstream: string) => void {
  let isReported = false;
  return (upstream) => {
    if (!isReported) report(upstream);
    isReported = true;
  };
}
