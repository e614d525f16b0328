/** What each port offers, in OpenAPI 3.1, as `npm run openapi` writes it. */
import { readFileSync } from 'node:fs';

/** The document of a port, as JSON. Read when it is asked for, because few ask. */
export const openapiOf = (port: 'data' | 'admin'): Buffer =>
  readFileSync(new URL(`../../schema/openapi-${port}.json`, import.meta.url));
