/** What the thread does that checks a configuration (`check-thread.ts`): one text, one result, end. */
import { parentPort, workerData } from 'node:worker_threads';
import { checkResult, type CheckTask } from './check-thread.ts';

parentPort?.postMessage(checkResult(workerData as CheckTask));
