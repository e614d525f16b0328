import { createReport } from '../report.ts';

/** Of `npm run verify:packaging`. */
export const report = createReport('packaging');
export const { run: check, skipped: skip } = report;

/** Texts of what does not hold. */
export const broken = (...promises) => promises.filter(([holds]) => !holds).map(([, text]) => text);
