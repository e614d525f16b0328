/** Counts and prints results. One line per check; a skip always says what could not run and why. */
const counts = { passed: 0, failed: 0, skipped: 0 };

/**
 * Runs one check. It fails by throwing, or by returning a non-empty list of problems.
 * @param {string} name @param {() => unknown} run
 */
export async function check(name, run) {
  const started = Date.now();
  try {
    const problems = (await run()) ?? [];
    if (Array.isArray(problems) && problems.length > 0) throw new Error(problems.slice(0, 25).join('\n'));
    counts.passed += 1;
    console.log(`ok      ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
    return true;
  } catch (error) {
    counts.failed += 1;
    const detail = [error.message, error.stdout, error.stderr].filter(Boolean).join('\n');
    console.log(`FAILED  ${name}\n${detail.slice(-4000).replace(/^/gm, '        ')}`);
    return false;
  }
}

export function skip(what, why) {
  counts.skipped += 1;
  console.log(`SKIPPED: ${what}: ${why}`);
}

export const section = (title) => console.log(`\n== ${title}`);

/** Last line, and whether everything that could run passed. */
export function finish() {
  console.log(`\npackaging: ${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
  return counts.failed === 0;
}
