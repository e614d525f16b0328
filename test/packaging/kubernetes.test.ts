/** What the chart claims of Kubernetes, and what `npm run verify:kubernetes` runs it on. */
import { expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { versionOf } from '../../scripts/kubernetes/programs.ts';

test('the oldest Kubernetes that the chart claims is the oldest that it is tested on', () => {
  const { kubeVersion }: { kubeVersion: string } = parse(readFileSync('helm/sluice/Chart.yaml', 'utf8'));
  const [, minor] = /^v?1\.(\d+)\./.exec(versionOf('oldest')) ?? [];
  expect(kubeVersion).toBe(`>=1.${minor}.0-0`);
});
