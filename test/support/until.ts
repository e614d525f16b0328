/** Waits for what a test has caused but cannot await. A condition that never comes ends with the test's time limit. */
export async function until(holds: () => boolean | Promise<boolean>, everyMs = 5): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, everyMs));
}
