/**
 * When the waiting calls of a ceiling are scanned because calls arrive, and again after the last one. Other replicas take slots,
 * too: a call may wait for a slot that was free when its wait was forecast, and no event in this process shows that it is gone.
 * So the scans go on for as long as calls wait: one, two, four, … seconds after the last arriving call.
 *
 * Owns: those times. Does not own: the scan itself (`ceiling-scan.ts`).
 * Keeps: while calls arrive every second, each scan follows one of their forecasts, whose reading of the ceiling it uses.
 */
import type { CancelTimer, Clock } from '../clock.ts';
import type { CeilingKey } from '../limiter/ceilings.ts';

/** Scans of one ceiling are at least this far apart. Milliseconds. */
const scanEveryMs = 1_000;

/** When slots of the ceiling were last forecast for an arriving call, and when it was last scanned. Monotonic milliseconds. */
interface Watched {
  forecastAt: number;
  scannedAt: number;
}

export class ScanSchedule {
  /** Scans the calls of a ceiling. */
  scan: (ceiling: CeilingKey) => void = () => {};
  readonly #clock: Clock;
  readonly #watched = new Map<CeilingKey, Watched>();
  #cancel: CancelTimer = () => {};

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A ceiling's slots were forecast for an arriving call: the waiting calls are scanned now, unless they were a moment ago. */
  onForecast(key: CeilingKey): void {
    const now = this.#clock.monotonic();
    const watched = this.#watched.get(key);
    if (watched === undefined) {
      if (this.#watched.size === 0) this.#checkLater();
      this.#watched.set(key, { forecastAt: now, scannedAt: now });
      return this.scan(key);
    }
    watched.forecastAt = now;
    if (now - watched.scannedAt >= scanEveryMs) this.#scan(key, watched, now);
  }

  /** No call waits under the ceiling any more. */
  forget(key: CeilingKey): void {
    if (this.#watched.delete(key) && this.#watched.size === 0) this.#cancel();
  }

  #checkLater(): void {
    this.#cancel = this.#clock.after(scanEveryMs, () => this.#check());
  }

  #check(): void {
    const now = this.#clock.monotonic();
    this.#checkLater();
    for (const [key, watched] of this.#watched) if (now >= nextScanAt(watched)) this.#scan(key, watched, now);
  }

  #scan(key: CeilingKey, watched: Watched, now: number): void {
    watched.scannedAt = now;
    this.scan(key);
  }
}

/** The next scan if no call arrives: twice as long after the last one as the latest scan was. */
const nextScanAt = ({ forecastAt, scannedAt }: Watched): number =>
  forecastAt + Math.max(scanEveryMs, 2 * (scannedAt - forecastAt));
