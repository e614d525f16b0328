/** What a verification found: a line per check, a loud line per check that could not run, and the exit code. */

export interface Report {
  /** Notes a finding; `detail` is shown when it failed. */
  check(name: string, passed: boolean, detail?: string): void;
  skipped(name: string, why: string): void;
  /** Prints a measurement: judged by people on a quiet machine, never by this run. */
  figure(text: string): void;
  /** Prints the totals; 1 when anything failed. */
  end(): number;
}

/** `name` stands before the totals. */
export function createReport(name = 'observability'): Report {
  let [passed, failed, skipped] = [0, 0, 0];
  return {
    check(name, ok, detail = '') {
      if (ok) passed += 1;
      else failed += 1;
      console.log(
        `${ok ? 'ok     ' : 'FAILED '} ${name}${ok || detail === '' ? '' : `\n         ${detail}`}`,
      );
    },
    skipped(name, why) {
      skipped += 1;
      console.log(`SKIPPED ${name}: ${why}`);
    },
    figure(text) {
      console.log(`figure  ${text}`);
    },
    end() {
      console.log(`\n${name}: ${passed} passed, ${failed} failed, ${skipped} skipped`);
      return failed > 0 ? 1 : 0;
    },
  };
}
