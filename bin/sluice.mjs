#!/usr/bin/env node
/**
 * The command `sluice`. Any Node since 14 can run this file, so that one which is too old for Sluice says what is needed. `npm run build`
 * writes it to dist/main.js, with the compiled sources behind it.
 */
const oldest = [24, 18, 1];
const version = process.versions.node.split('.').map(Number);
const difference = oldest.map((part, at) => version[at] - part).find((part) => part !== 0) || 0;
if (difference < 0) {
  process.stderr.write(
    `Sluice needs Node ${oldest.join('.')} or newer; this is ${process.versions.node}. ` +
      'Older versions drop header fields that frame a body. Install Node 24: https://nodejs.org/en/download\n',
  );
  process.exit(1);
}
await import('../src/main.ts');
