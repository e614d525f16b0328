/** Jest reporter: closes the run with one plain line that any CI can read. A file that cannot be run counts as one failed test. */
export default class PlainSummary {
  onRunComplete(_contexts, results) {
    const { numPassedTests, numFailedTests, numRuntimeErrorTestSuites, numPendingTests } = results;
    process.stdout.write(
      `tests: ${numPassedTests} passed, ${numFailedTests + numRuntimeErrorTestSuites} failed, ${numPendingTests} skipped\n`,
    );
  }
}
