/** Somebody else who uses the same quota: when, and how many units at once. */
import type { Random } from '../../../src/clock.ts';

export interface OutsideTake {
  readonly at: number;
  readonly units: number;
}
/** The n-th time that the outsider comes, for one who takes `perMs` units a millisecond on average. */
export type Outsider = (perMs: number, windowMs: number, random: Random) => Generator<OutsideTake, never>;

/** One unit after the other at equal distances. */
export function* steady(perMs: number, _windowMs: number, random: Random): Generator<OutsideTake, never> {
  for (let at = random.next() / perMs; ; at += 1 / perMs) yield { at, units: 1 };
}

/** One unit after the other at any distance. */
export function* irregular(perMs: number, _windowMs: number, random: Random): Generator<OutsideTake, never> {
  for (let at = 0; ; yield { at, units: 1 }) at -= Math.log(1 - random.next()) / perMs;
}

/** Twice the rate for a twelfth of the window, then nothing for as long. */
export function* inBursts(perMs: number, windowMs: number, random: Random): Generator<OutsideTake, never> {
  const onMs = windowMs / 12;
  const begins = random.next() * onMs;
  for (let on = 0; ; on += 1 / (2 * perMs)) {
    const rounds = Math.floor(on / onMs);
    yield { at: begins + on + rounds * onMs, units: 1 };
  }
}

/** Some units at once, now and then. */
export function* inLargeBursts(
  perMs: number,
  windowMs: number,
  random: Random,
): Generator<OutsideTake, never> {
  const everyMs = Math.max(windowMs / 24, 3 / perMs);
  let owed = random.next();
  for (let at = random.next() * everyMs; ; at += everyMs) {
    owed += perMs * everyMs;
    const units = Math.floor(owed);
    owed -= units;
    yield { at, units };
  }
}
