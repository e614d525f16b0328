/** What a thread does that checks a configuration (`settingsApart` of `load.ts`): one text, one result, end. */
import { parentPort, workerData } from 'node:worker_threads';
import { checkText, type WrittenConfig } from './check-text.ts';
import { ConfigError, type Problem } from './problem.ts';
import { fileSchema, type FileInput } from './schema.ts';

/** The message with which the thread answers: the checked file, or what is wrong with it. */
export type CheckResult = FileInput | readonly Problem[];

function check({ text, ...source }: WrittenConfig): CheckResult {
  try {
    return checkText(fileSchema, text, source);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
}

parentPort?.postMessage(check(workerData as WrittenConfig));
