/**
 * Waits for what a test has caused but cannot await: a counter of an upstream, a state in a log. It has no limit of its
 * own, since how long it may take depends on the machine: a condition that never comes ends with the test's time limit.
 */
export async function until(holds: () => boolean | Promise<boolean>, everyMs = 5): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, everyMs));
}
