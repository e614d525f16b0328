/** What the chart claims of Kubernetes, and what `npm run verify:kubernetes` runs it on. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { versionOf } from '../../scripts/kubernetes/programs.ts';

const minorOf = (version: string): number => Number(/^v?1\.(\d+)\./.exec(version)?.[1]);

describe('the Kubernetes releases of the chart', () => {
  test('claim as oldest the oldest that is tested', () => {
    const { kubeVersion }: { kubeVersion: string } = parse(readFileSync('helm/sluice/Chart.yaml', 'utf8'));
    expect(kubeVersion).toBe(`>=1.${minorOf(versionOf('oldest'))}.0-0`);
  });

  test('are the same in the README of the chart', () => {
    const oldest = `Kubernetes 1.${minorOf(versionOf('oldest'))} and newer`;
    expect(readFileSync('helm/sluice/README.md', 'utf8')).toContain(oldest);
  });

  test('are two different ones, years apart', () => {
    expect(minorOf(versionOf('newest')) - minorOf(versionOf('oldest'))).toBeGreaterThanOrEqual(6);
  });
});
