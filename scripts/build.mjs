/** Builds dist/: compiles the sources, then copies what they read at run time (Lua scripts, the page's files). */
import { execFileSync } from 'node:child_process';
import { cpSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';

rmSync('dist', { recursive: true, force: true });
execFileSync(process.execPath, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'], {
  stdio: 'inherit',
});
for (const file of readdirSync('src', { recursive: true, encoding: 'utf8' })) {
  if (/\.(lua|html|css|svg|json)$/.test(file) || /^page\/static\/.+\.js$/.test(file)) {
    cpSync(join('src', file), join('dist/src', file));
  }
}
