/** What the chart claims of Kubernetes, and what `npm run verify:kubernetes` runs it on. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { versionOf } from '../../scripts/kubernetes/programs.ts';

const minorOf = (version: string): number => Number(/^v?1\.(\d+)\./.exec(version)?.[1]);

describe('releases of Kubernetes', () => {
  test('the oldest that the chart claims is the oldest that it is proved on', () => {
    const { kubeVersion }: { kubeVersion: string } = parse(readFileSync('helm/sluice/Chart.yaml', 'utf8'));
    expect(kubeVersion).toBe(`>=1.${minorOf(versionOf('oldest'))}.0-0`);
  });

  test('the README of the chart claims the same', () => {
    const oldest = `Kubernetes 1.${minorOf(versionOf('oldest'))} and newer`;
    expect(readFileSync('helm/sluice/README.md', 'utf8')).toContain(oldest);
  });

  test('two different releases are run, years apart', () => {
    expect(minorOf(versionOf('newest')) - minorOf(versionOf('oldest'))).toBeGreaterThanOrEqual(6);
  });
});
