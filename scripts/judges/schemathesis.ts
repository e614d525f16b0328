/**
 * schemathesis against the OpenAPI documents: every response has a status, fields, a type and a body as described. Also the 5xx:
 * those of the document are known refusals (502 of an upstream), any other is a fault.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { start, until } from '../fleet/processes.ts';
import type { Report } from '../report.ts';
import { fromPyPi, ran } from './tools.ts';

const checks = [
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'allow_header_conformance',
].join(',');
const seconds = 60;

/** The gateway that is judged: `sluice demo --serve` as a process of its own. */
async function startDemo() {
  const { said, stop } = start(process.execPath, ['src/main.ts', 'demo', '--serve']);
  await until('the demonstration serves', 60_000, () => said().includes('Ctrl-C'), said);
  const word = (pattern: RegExp): string => pattern.exec(said())?.[1] ?? '';
  return {
    data: word(/data port +(\S+)/),
    admin: word(/live page +(\S+?)\/\s/),
    key: word(/API key +(\S+)/),
    /** Absolute URLs that its upstreams answer. */
    targets: [...said().matchAll(/target=([^"\s]+)/g)].map(([, target = '']) => decodeURIComponent(target)),
    stop,
  };
}

interface Document {
  paths: Record<string, Record<string, { parameters?: { name: string; schema: object }[] }>>;
}

/** The document with values that lead somewhere beside those that the judge makes up, so that calls get behind the door. */
function withKnownValues(document: Document, target: readonly string[]): Document {
  const known: Readonly<Record<string, readonly string[]>> = { target, upstream: ['openai', 'shop'] };
  for (const operation of Object.values(document.paths).flatMap((path) => Object.values(path)))
    for (const parameter of operation.parameters ?? []) {
      const values = known[parameter.name];
      if (values !== undefined) parameter.schema = { anyOf: [{ enum: values }, { type: 'string' }] };
    }
  return document;
}

export async function judgeBySchemathesis(report: Report): Promise<void> {
  const tool = await fromPyPi('schemathesis');
  if ('why' in tool) return report.skipped('schemathesis', tool.why);
  const demo = await startDemo();
  const folder = await mkdtemp(join(tmpdir(), 'sluice-judges-'));
  try {
    for (const port of ['data', 'admin'] as const) {
      const source = new URL(`../../schema/openapi-${port}.json`, import.meta.url);
      const document = withKnownValues(JSON.parse(await readFile(source, 'utf8')) as Document, demo.targets);
      const path = join(folder, `${port}.json`);
      await writeFile(path, JSON.stringify(document));
      const bounds = ['--max-time', String(seconds), '--request-timeout', '10', '-n', '20', '--seed', '1'];
      const how = ['--checks', checks, '--no-shrink', '--continue-on-failure', '--warnings', 'off'];
      const only =
        port === 'data'
          ? ['-H', `Authorization: Bearer ${demo.key}`, '-H', 'Prefer: wait=1']
          : // Responses that go on for as long as they are asked for.
            ['--exclude-path', '/page/events', '--exclude-path', '/recording'];
      const args = ['run', path, '-u', demo[port], ...bounds, ...how, ...only];
      const { status, output } = await ran(tool.path, args, 1_900 * seconds);
      const failures = output.slice(Math.max(0, output.search(/= (ERRORS|FAILURES) =/)));
      report.check(`schemathesis: ${port} port answers as described`, status === 0, failures.slice(0, 4_000));
      report.figure(
        `schemathesis, ${port} port: ${/\d+ generated[^\n]*/.exec(output)?.[0] ?? 'nothing told'}`,
      );
    }
  } finally {
    await demo.stop();
    await rm(folder, { recursive: true, force: true });
  }
}
