/**
 * The published JSON Schema of the configuration file, generated from `src/config/settings.ts`. Draft 7, because helm before 3.18
 * knows nothing newer. Describes the file as written, so numbers may also be `${ENV}` references.
 */
import { z } from 'zod';
import { fileSchema } from '../src/config/settings.ts';
import { isDurationKey } from '../src/duration.policy.ts';

/** With a unit: 90s, 5m, 2h. */
const duration = { type: 'string', pattern: '^\\d{1,9}(\\.\\d{1,9})?[smh]?$' };
const reference = { type: 'string', pattern: '^\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}$' };

/** JSON Schema (draft 7) of the configuration file as plain data. */
export function configJsonSchema(): Record<string, unknown> {
  const { $schema, ...schema } = z.toJSONSchema(fileSchema, {
    target: 'draft-7',
    io: 'input',
    override: ({ jsonSchema, path }) => {
      const { type } = jsonSchema;
      if (type !== 'integer' && type !== 'number' && type !== 'boolean') return;
      const { description, default: fallback, ...rule } = jsonSchema;
      for (const key of Object.keys(jsonSchema)) Reflect.deleteProperty(jsonSchema, key);
      Object.assign(jsonSchema, description === undefined ? {} : { description });
      Object.assign(jsonSchema, fallback === undefined ? {} : { default: fallback });
      const isDuration = isDurationKey(path.at(-1) ?? '');
      Object.assign(jsonSchema, { anyOf: isDuration ? [rule, duration, reference] : [rule, reference] });
    },
  });
  return { $schema, title: 'Sluice configuration', ...schema };
}
