/**
 * schemathesis against the OpenAPI documents: every response has a status, fields, a type and a body as described. Also the 5xx:
 * those of the document are known refusals (502 of an upstream), any other is a fault.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Report } from '../report.ts';
import { startDemo, type Demo } from './demo.ts';
import { fromPyPi, ran } from './tools.ts';

const checks = [
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'allow_header_conformance',
].join(',');
const seconds = 60;

interface Parameter {
  name: string;
  schema: object;
}
interface Document {
  paths: Record<string, Record<string, { parameters?: Parameter[] }>>;
}

/** The document with values that lead somewhere beside those that the judge makes up, so that calls get behind the door. */
function withKnownValues(document: Document, { targets }: Demo): Document {
  const known: Readonly<Record<string, readonly string[]>> = {
    target: targets,
    upstream: ['openai', 'shop'],
  };
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
      const document = withKnownValues(JSON.parse(await readFile(source, 'utf8')) as Document, demo);
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
