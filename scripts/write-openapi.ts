/** Writes schema/openapi-data.json and schema/openapi-admin.json: `npm run openapi`. */
import { writeFileSync } from 'node:fs';
import { format, resolveConfig } from 'prettier';
import { adminPort, dataPort } from './openapi/documents.ts';

for (const [name, document] of Object.entries({ data: dataPort(), admin: adminPort() })) {
  const file = new URL(`../schema/openapi-${name}.json`, import.meta.url);
  const style = await resolveConfig(file);
  writeFileSync(file, await format(JSON.stringify(document), { ...style, parser: 'json' }));
}
