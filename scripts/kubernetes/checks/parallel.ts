/** Several at a time. */

/** Runs them in order, `jobs` at a time; ends when all have ended. */
export async function inParallel(jobs: number, tasks: readonly (() => Promise<unknown>)[]): Promise<void> {
  const waiting = [...tasks];
  const work = async (): Promise<void> => {
    for (let task = waiting.shift(); task !== undefined; task = waiting.shift()) await task();
  };
  await Promise.all(Array.from({ length: jobs }, work));
}
