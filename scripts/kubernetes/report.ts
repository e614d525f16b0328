/**
 * What the run found: a line per check, a loud line per check that could not run, the fewest ready pods of every
 * transition, and what became of every call that was sent. A part that runs in a process of its own hands its report over
 * as JSON. Owns no judgement: a check fails by throwing.
 */
import { writeFileSync } from 'node:fs';

/** One change of a running release. Counts of pods; `min` over the whole transition. */
export interface Transition {
  readonly name: string;
  readonly readyBefore: number;
  readonly minReady: number;
  readonly maxPods: number;
}

/**
 * What became of the calls of one load. `lost`: not answered 200. `doubled`: reached the upstream more than once. `resent`: sent
 * again on a connection of its own, because the kept one was closed before any byte of a response.
 */
export interface Load {
  readonly name: string;
  readonly sent: number;
  readonly lost: number;
  readonly doubled: number;
  readonly resent: number;
}

interface Skip {
  readonly what: string;
  readonly why: string;
}

/** Everything of one report, for another process. */
export interface Findings {
  passed: number;
  failed: string[];
  skipped: Skip[];
  transitions: Transition[];
  loads: Load[];
}

const seconds = (fromMs: number): string => `${((Date.now() - fromMs) / 1000).toFixed(1)} s`;

/** What becomes of a machine on which Kubernetes cannot be built or started: a failed check, or parts that are skipped. */
export type SetUpFailure = 'fails' | 'skips';

export class Report {
  readonly #setUpFailure: SetUpFailure;
  readonly findings: Findings = { passed: 0, failed: [], skipped: [], transitions: [], loads: [] };

  constructor(setUpFailure: SetUpFailure = 'fails') {
    this.#setUpFailure = setUpFailure;
  }

  section(title: string): void {
    console.log(`\n== ${title} (${new Date().toISOString().slice(11, 19)})`);
  }

  /** Runs one check: it fails by throwing; text that it returns is printed beside its name. */
  async check(name: string, run: () => Promise<string | void>): Promise<boolean> {
    const started = Date.now();
    try {
      const note = await run();
      this.findings.passed += 1;
      console.log(`ok      ${name} (${seconds(started)})${note ? `: ${note}` : ''}`);
      return true;
    } catch (failure) {
      this.findings.failed.push(name);
      const detail = failure instanceof Error ? failure.message : String(failure);
      console.log(`FAILED  ${name} (${seconds(started)})\n${detail.slice(-4000).replace(/^/gm, '        ')}`);
      return false;
    }
  }

  /** Runs a step that says nothing of the chart, only whether this machine can go on. */
  async setUp(name: string, run: () => Promise<string | void>): Promise<boolean> {
    if (this.#setUpFailure === 'fails') return this.check(name, run);
    try {
      const note = await run();
      return await this.check(name, () => Promise.resolve(note));
    } catch (failure) {
      this.skip(name, `not possible on this machine: ${String(failure).slice(-1_000)}`);
      return false;
    }
  }

  skip(what: string, why: string): void {
    this.findings.skipped.push({ what, why });
    console.log(`SKIPPED ${what}: ${why}`);
  }

  /**
   * Notes a transition. @throws when it had fewer ready pods than `wanted`, or too many pods: one more than `maxPods` may be
   * there for a moment, because a Deployment counts the pods that it asked for, not those that are still to be deleted.
   */
  transition(transition: Transition, wanted: number, maxPods: number): string {
    this.findings.transitions.push(transition);
    const text = `ready before ${transition.readyBefore}, min ${transition.minReady}, at most ${transition.maxPods} pods`;
    if (transition.minReady < wanted) throw new Error(`${text}: fewer than ${wanted} were ready`);
    if (transition.maxPods > maxPods + 1) throw new Error(`${text}: more than ${maxPods} pods are allowed`);
    return text;
  }

  /** Notes a load. @throws when a call was lost or reached the upstream twice, with the first few of them */
  load(load: Load, examples: readonly string[]): string {
    this.findings.loads.push(load);
    const resent = load.resent === 0 ? '' : `, ${load.resent} sent again`;
    const text = `${load.sent} calls, ${load.lost} lost, ${load.doubled} doubled${resent}`;
    if (load.lost + load.doubled > 0) throw new Error(`${text}\n${examples.slice(0, 8).join('\n')}`);
    return text;
  }

  /** For the process that started this one. */
  write(file: string): void {
    writeFileSync(file, JSON.stringify(this.findings));
  }

  /** Adds what a part found that ran in a process of its own. */
  add(other: Findings): void {
    this.findings.passed += other.passed;
    this.findings.failed.push(...other.failed);
    this.findings.skipped.push(...other.skipped);
    this.findings.transitions.push(...other.transitions);
    this.findings.loads.push(...other.loads);
  }

  /** Prints the tables and the totals. @returns the exit code */
  end(): number {
    const { passed, failed, skipped, transitions, loads } = this.findings;
    if (transitions.length > 0) {
      console.log('\n| transition | ready before | min ready | max pods |\n|---|---|---|---|');
      for (const { name, readyBefore, minReady, maxPods } of transitions)
        console.log(`| ${name} | ${readyBefore} | ${minReady} | ${maxPods} |`);
    }
    if (loads.length > 0) {
      console.log('\n| load | calls sent | lost | doubled | sent again |\n|---|---|---|---|---|');
      for (const { name, sent, lost, doubled, resent } of loads)
        console.log(`| ${name} | ${sent} | ${lost} | ${doubled} | ${resent} |`);
      const sum = (of: (load: Load) => number): number => loads.reduce((total, load) => total + of(load), 0);
      console.log(
        `| all | ${sum((one) => one.sent)} | ${sum((one) => one.lost)} | ${sum((one) => one.doubled)} | ${sum((one) => one.resent)} |`,
      );
    }
    console.log('');
    for (const name of failed) console.log(`FAILED  ${name}`);
    for (const { what, why } of skipped) console.log(`SKIPPED ${what}: ${why}`);
    console.log(`kubernetes: ${passed} passed, ${failed.length} failed, ${skipped.length} skipped`);
    return failed.length === 0 ? 0 : 1;
  }
}
