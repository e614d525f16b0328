/** What the thread does that checks a configuration (`check-thread.ts`): one text, one answer, end. */
import { parentPort, workerData } from 'node:worker_threads';
import { answerTo } from './check-answer.ts';
import type { CheckTask } from './check-thread.ts';

parentPort?.postMessage(answerTo(workerData as CheckTask));
