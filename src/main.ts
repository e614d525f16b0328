#!/usr/bin/env node
/** Process entry: checks the runtime, hands the arguments to `cli/`. No logic. */
const oldest = [24, 18, 1] as const;
const version = process.versions.node.split('.').map(Number);
const difference = oldest.map((part, at) => (version[at] ?? 0) - part).find((part) => part !== 0) ?? 0;
if (difference < 0) {
  process.stderr.write(
    `Sluice needs Node ${oldest.join('.')} or newer; this is ${process.versions.node}. ` +
      'Older versions drop header fields that frame a body. ' +
      'Use `npm run` (the project brings its own Node) or install Node 24.\n',
  );
  process.exit(1);
}
await import('./engine.ts');
const { run } = await import('./cli/run.ts');
await run(process.argv.slice(2));
