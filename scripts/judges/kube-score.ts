/** kube-score on the manifests, which are the chart's output: nothing critical that is not answered here. */
import type { Report } from '../observability/report.ts';
import { fromGo, ran } from './tools.ts';

const manifests = new URL('../../k8s/install.yaml', import.meta.url).pathname;

/** Findings that stand, and why. */
const answered: readonly (readonly [string, string])[] = [
  ['CPU limit is not set', 'throttled CPU delays every call that a pod holds (docs/operate/size.md)'],
  ['ImagePullPolicy is not set to Always', 'the image is named by its version, which is pushed once'],
];

export async function judgeByKubeScore(report: Report): Promise<void> {
  const tool = await fromGo('kube-score');
  if ('why' in tool) return report.skipped('kube-score', tool.why);
  const { output } = await ran(tool.path, ['score', manifests, '--output-format', 'ci'], 60_000);
  const critical = output.split('\n').filter((line) => line.startsWith('[CRITICAL]'));
  const open = critical.filter((line) => !answered.some(([finding]) => line.includes(finding)));
  report.check(
    'kube-score: nothing critical is unanswered',
    output.includes('[OK]') && open.length === 0,
    open.join('\n         ') || output.slice(0, 500),
  );
  for (const [finding, why] of answered)
    if (critical.some((line) => line.includes(finding))) report.figure(`kube-score: ${finding}: ${why}`);
}
