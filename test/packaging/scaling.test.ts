/** The documented arithmetic of scaling, and the chart's defaults that depend on it. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { wantedReplicas } from '../../scripts/packaging/scaling.ts';

const values: unknown = parse(readFileSync('helm/sluice/values.yaml', 'utf8'));
const bounds = { min: 2, max: 10, target: 600 };

describe('scaling by calls waiting and in flight', () => {
  test.each([
    { pods: 3, value: 1200, wanted: 6 },
    { pods: 3, value: 600, wanted: 3 },
    { pods: 3, value: 659, wanted: 3 },
    { pods: 3, value: 661, wanted: 4 },
    { pods: 4, value: 290, wanted: 2 },
    { pods: 4, value: 0, wanted: 2 },
    { pods: 10, value: 5000, wanted: 10 },
  ])('makes $wanted of $pods pods with $value calls each', ({ pods, value, wanted }) => {
    expect(wantedReplicas({ pods, value, ...bounds })).toBe(wanted);
  });

  test('never goes to zero, and scales in no faster than a drain', () => {
    expect(values).toMatchObject({
      autoscaling: { minReplicas: 2, callsPerPod: 600, scaleDownWindowSeconds: 600 },
    });
  });
});
