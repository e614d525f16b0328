/**
 * What a history tells of itself: the log of its steps, the states it has reached, the invariants it has broken. Owns no
 * judgement: the ledgers that extend it judge.
 */
export class Story {
  readonly violations: string[] = [];
  readonly reached = new Map<string, number>();
  readonly log: string[] = [];
  /** Without a log only what was broken is known, not how: for runs over many seeds. */
  readonly keepsLog: boolean;

  constructor(keepsLog = true) {
    this.keepsLog = keepsLog;
  }

  /** @param text a function where it takes time to put it into words. */
  note(now: number, text: string | (() => string)): void {
    if (!this.keepsLog) return;
    this.log.push(`${now.toFixed(2)} ${typeof text === 'string' ? text : text()}`);
  }

  reach(state: string): void {
    this.reached.set(state, (this.reached.get(state) ?? 0) + 1);
  }

  broken(now: number, invariant: string, text: string): void {
    this.violations.push(`${invariant} at ${now.toFixed(2)}: ${text}`);
    this.note(now, `BROKEN ${invariant} ${text}`);
  }
}
