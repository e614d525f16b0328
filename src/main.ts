/** Process entry, behind `bin/sluice.mjs`: hands the arguments to `cli/`. No logic. */
await import('./engine.ts');
const { run } = await import('./cli/run.ts');
await run(process.argv.slice(2));
