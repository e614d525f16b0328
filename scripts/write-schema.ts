/** Writes schema/sluice.schema.json from the configuration schema: `node scripts/write-schema.ts`. */
import { format, resolveConfig } from 'prettier';
import { writeFileSync } from 'node:fs';
import { configJsonSchema } from './json-schema.ts';

const file = new URL('../schema/sluice.schema.json', import.meta.url);
const style = await resolveConfig(file);
writeFileSync(file, await format(JSON.stringify(configJsonSchema()), { ...style, parser: 'json' }));
