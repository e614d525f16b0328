/** What a thread does that checks a configuration (`settingsApart` of `load.ts`): one text, one result, end. */
import { parentPort, workerData } from 'node:worker_threads';
import { checkText, ConfigError } from './check-text.ts';
import type { WrittenConfig } from './load.ts';
import { fileSchema } from './settings.ts';

const { text, ...source } = workerData as WrittenConfig;
try {
  parentPort?.postMessage(checkText(fileSchema, text, source));
} catch (error) {
  if (!(error instanceof ConfigError)) throw error;
  parentPort?.postMessage(error.problems);
}
