/** Builds dist/: compiles the sources, then copies what they read at run time (Lua scripts, the page's files). */
import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';

rmSync('dist', { recursive: true, force: true });
execFileSync(process.execPath, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.json'], {
  stdio: 'inherit',
});
for (const file of globSync('src/**/*.{lua,html,css,svg,json}').concat(globSync('src/page/static/**/*.js'))) {
  const to = join('dist', file.slice('src/'.length));
  mkdirSync(dirname(to), { recursive: true });
  cpSync(file, to);
}
