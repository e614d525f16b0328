/**
 * httplint over recorded responses of both ports, each judged together with its request: nothing is marked bad. What it warns of
 * is printed and not judged.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { tally, type Report } from '../report.ts';
import { ofAdmin, passing, refused } from './responses/calls.ts';
import { recorded, startGateways, type Recorded } from './responses/gateway.ts';
import { fromPyPi, ran } from './tools.ts';

const judge = new URL('lint_responses.py', import.meta.url).pathname;
const maxMs = 120_000;
const minResponses = 200;

/** Marked bad in every such response, and why it stands. */
const answered: readonly (readonly [string, string])[] = [
  [
    "The server won't accept a URI this long",
    'what every 414 is marked with: targets end at 8 KiB, RFC 9110 asks for 8,000 octets',
  ],
];

interface Judgement {
  readonly name: string;
  readonly bad: readonly string[];
  readonly warned: readonly string[];
}

/** Those of an upstream in every form, the gateway's own refusals, and the admin port's. */
async function recordedResponses(): Promise<readonly Recorded[]> {
  const gateways = await startGateways();
  try {
    const passed = await recorded([...passing(gateways), ...ofAdmin(gateways)]);
    return [...passed, ...(await recorded(refused(gateways)))];
  } finally {
    await gateways.stop();
  }
}

/** @returns a judgement per response, or why there is none */
async function judged(python: string, all: readonly Recorded[]): Promise<readonly Judgement[] | string> {
  const input = all.map(({ name, method = 'GET', path: target, at, response, fields = [] }) => {
    const named = fields.map((line) => [
      line.slice(0, line.indexOf(':')),
      line.slice(line.indexOf(':') + 1).trim(),
    ]);
    return JSON.stringify({ name, method, target, at, fields: named, response: response.toString('base64') });
  });
  const { status, output } = await ran(python, [judge], maxMs, input.join('\n'));
  if (status !== 0) return output.slice(-500);
  return output.split('\n').map((line) => JSON.parse(line) as Judgement);
}

export async function judgeByHttplint(report: Report): Promise<void> {
  const tool = await fromPyPi('httplint');
  if ('why' in tool) return report.skipped('httplint', tool.why);
  const python = join(tool.path, '../python');
  if (!existsSync(python)) return report.skipped('httplint', `no ${python}`);
  const all = await recordedResponses();
  const others = all.filter(({ expected, got }) => expected !== got);
  report.check(
    `httplint: ${all.length} responses were recorded as they were meant`,
    all.length >= minResponses && others.length === 0,
    others.map(({ name, expected, got }) => `${name}: ${got}, not ${expected}`).join('\n         '),
  );
  const judgements = await judged(python, all);
  if (typeof judgements === 'string')
    return report.check('httplint: the responses were judged', false, judgements);
  const bad = judgements
    .flatMap(({ name, bad: found }) => found.map((what) => `${name}: ${what}`))
    .filter((what) => !answered.some(([finding]) => what.includes(finding)));
  report.check(
    `httplint: nothing is marked bad in ${judgements.length} responses`,
    judgements.length === all.length && bad.length === 0,
    bad.join('\n         '),
  );
  for (const [finding, why] of answered) report.figure(`httplint: ${finding}: ${why}`);
  report.figure(`httplint warned of: ${tally(judgements.flatMap(({ warned }) => [...new Set(warned)]))}`);
}
