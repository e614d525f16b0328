/** What a verification found: a line per check, a loud line per check that could not run, and the exit code. */

/** Fails by throwing, or by returning a list of problems; a text that it returns is printed beside its name. */
export type Check = () => unknown;

export interface Report {
  /** Prints a heading. */
  section(title: string): void;
  /** Notes a finding; `detail` is shown when it failed. */
  check(name: string, passed: boolean, detail?: string): void;
  /** Runs one check and notes what it finds. @returns whether it passed */
  run(name: string, check: Check): Promise<boolean>;
  skipped(name: string, why: string): void;
  /** Prints a measurement: judged by people on a quiet machine, never by this run. */
  figure(text: string): void;
  /** Prints the totals; 1 when anything failed. */
  end(): number;
}

/** `name` stands before the totals. */
export function createReport(name: string): Report {
  const failures: string[] = [];
  let [passed, skipped] = [0, 0];
  const note = (what: string, isGood: boolean, said: string): void => {
    if (isGood) passed += 1;
    else failures.push(what);
    console.log(`${isGood ? 'ok     ' : 'FAILED '} ${what}${said}`);
  };
  const indented = (text: string): string =>
    text === '' ? '' : `\n${text.slice(-4_000).replace(/^/gm, '         ')}`;
  return {
    section: (title) => console.log(`\n== ${title}`),
    check: (what, isGood, detail = '') => note(what, isGood, isGood ? '' : indented(detail)),
    async run(what, check) {
      const startedAt = performance.now();
      const { isGood, said } = await problemOf(check);
      const took = ` (${((performance.now() - startedAt) / 1_000).toFixed(1)} s)`;
      const beside = said === '' ? '' : `: ${said}`;
      note(what, isGood, took + (isGood ? beside : indented(said)));
      return isGood;
    },
    skipped(what, why) {
      skipped += 1;
      console.log(`SKIPPED ${what}: ${why}`);
    },
    figure: (text) => console.log(`figure  ${text}`),
    end() {
      console.log('');
      for (const failure of failures) console.log(`FAILED  ${failure}`);
      console.log(`${name}: ${passed} passed, ${failures.length} failed, ${skipped} skipped`);
      return failures.length > 0 ? 1 : 0;
    },
  };
}

/** Words and how often each of them came, as `answered ×3, left ×1`. */
export const tally = (words: readonly string[]): string =>
  [...Map.groupBy(words, (word) => word)].map(([word, { length }]) => `${word} ×${length}`).join(', ');

async function problemOf(check: Check): Promise<{ readonly isGood: boolean; readonly said: string }> {
  try {
    const found = await check();
    if (Array.isArray(found)) return { isGood: found.length === 0, said: found.slice(0, 25).join('\n') };
    return { isGood: true, said: typeof found === 'string' ? found : '' };
  } catch (failure) {
    if (!(failure instanceof Error)) return { isGood: false, said: String(failure) };
    // What a program wrote that ended with another code than 0.
    const { stdout = '', stderr = '' } = failure as { stdout?: string; stderr?: string };
    return { isGood: false, said: [failure.message, stdout, stderr].filter(Boolean).join('\n') };
  }
}
