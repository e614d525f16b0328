/**
 * A simulator as a process of its own: `node simulators/main.ts language-model|commerce [--port 0] [--config JSON]`.
 *
 * Owns: arguments, the one JSON line `{"simulator", "url", "port"}` on standard output, the end on SIGTERM and SIGINT.
 */
import { parseArgs } from 'node:util';
import { createCommerceSimulator, type CommerceOptions } from './commerce.ts';
import { objectOf, parseJson } from './json.ts';
import { createLanguageModelSimulator, type LanguageModelOptions } from './language-model.ts';

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { port: { type: 'string', default: '0' }, config: { type: 'string', default: '{}' } },
});
const config = objectOf(parseJson(values.config));
const name = positionals[0];
const simulator =
  config === undefined
    ? undefined
    : name === 'language-model'
      ? // Untyped data enters here, from tests only.
        createLanguageModelSimulator(config as LanguageModelOptions)
      : name === 'commerce'
        ? createCommerceSimulator(config as CommerceOptions)
        : undefined;

if (simulator === undefined) {
  process.stderr.write('usage: main.ts language-model|commerce [--port 0] [--config JSON object]\n');
  process.exitCode = 2;
} else {
  const { url, port } = await simulator.listen(Number(values.port));
  process.stdout.write(`${JSON.stringify({ simulator: name, url, port })}\n`);
  const stop = (): void => void simulator.close().then(() => process.exit(0));
  process.once('SIGTERM', stop);
  process.once('SIGINT', stop);
}
