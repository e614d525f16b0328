/**
 * Builds dist/, or the folder that is named: compiles the sources, then copies what they read at run time (Lua scripts, the page's files,
 * presets, descriptions of the ports) to the same places. `main.js` is the entry that commands, the image and the chart name.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [, , folder = 'dist'] = process.argv;
const compiler = 'node_modules/typescript/bin/tsc';

rmSync(folder, { recursive: true, force: true });
execFileSync(process.execPath, [compiler, '-p', 'tsconfig.build.json', '--outDir', folder], {
  stdio: 'inherit',
});
for (const file of readdirSync('src', { recursive: true, encoding: 'utf8' })) {
  if (/\.(lua|html|css|svg|json)$/.test(file) || /^page\/static\/.+\.js$/.test(file)) {
    cpSync(join('src', file), join(folder, 'src', file));
  }
}
cpSync('presets', join(folder, 'presets'), { recursive: true });
for (const port of ['data', 'admin'])
  cpSync(`schema/openapi-${port}.json`, join(folder, `schema/openapi-${port}.json`));
const entry = readFileSync('bin/sluice.mjs', 'utf8').replace('../src/main.ts', './src/main.js');
writeFileSync(join(folder, 'main.js'), entry, { mode: 0o755 });
