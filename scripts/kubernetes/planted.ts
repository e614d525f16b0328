/** A chart with one defect each: what the checks are for. A defect that its check does not find fails the run. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chart } from '../packaging/generated.mjs';
import { Report } from './report.ts';

/** A change of one file of the chart. */
export interface Defect {
  readonly name: string;
  /** Path inside the chart. */
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

export const defects = {
  unavailable: {
    name: 'maxUnavailable 1',
    file: 'values.yaml',
    from: 'rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }',
    to: 'rollingUpdate: { maxUnavailable: 1, maxSurge: 1 }',
  },
  budget: {
    name: 'a missing PodDisruptionBudget',
    file: 'templates/pdb.yaml',
    from: '{{- if and .Values.podDisruptionBudget.enabled',
    to: '{{- if and false .Values.podDisruptionBudget.enabled',
  },
  replicas: {
    name: 'replicas left out under every autoscaler',
    file: 'templates/deployment.yaml',
    from: '{{- if not (kindIs "invalid" $replicas.count) }}',
    to: '{{- if not $facts.autoscaled }}',
  },
  readiness: {
    name: 'a readiness probe that never fails',
    file: 'values.yaml',
    from: 'readiness: { periodSeconds: 2, failureThreshold: 2, timeoutSeconds: 2 }',
    to: 'readiness: { periodSeconds: 2, failureThreshold: 1000000, timeoutSeconds: 2 }',
  },
  egress: {
    name: 'an egress rule that is too narrow',
    file: 'values.yaml',
    from: 'redisPorts: [6379]',
    to: 'redisPorts: [6380]',
  },
} as const satisfies Record<string, Defect>;

/**
 * Runs `check` on a copy of the chart with the defect, and wants it to fail as expected.
 * @param says what the failure must say: another failure is no proof
 */
export async function finds(
  defect: Defect,
  says: RegExp,
  check: (chart: string, unseen: Report) => Promise<unknown>,
): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-defect-'));
  try {
    cpSync(chart, folder, { recursive: true });
    const file = join(folder, defect.file);
    const text = readFileSync(file, 'utf8');
    if (!text.includes(defect.from)) throw new Error(`${defect.file} has no "${defect.from}" to break`);
    writeFileSync(file, text.replace(defect.from, defect.to));
    const said = await check(folder, new Report()).then(
      () => null,
      (failure: unknown) => (failure instanceof Error ? failure.message : String(failure)),
    );
    if (said === null) throw new Error('it was not noticed');
    const line = said.split('\n').find((one) => says.test(one));
    if (line === undefined) throw new Error(`noticed for another reason:\n${said}`);
    return `found: ${line.trim().slice(0, 160)}`;
  } finally {
    rmSync(folder, { recursive: true });
  }
}
