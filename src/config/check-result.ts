/** The message in which the thread that checks a configuration answers. Owns: its form, which can be copied from thread to thread. */
import { checkText } from './check-text.ts';
import type { CheckResult, CheckTask } from './check-thread.ts';
import { checkedInput } from './checked-input.ts';
import { ConfigError } from './problem.ts';
import { fileSchema } from './schema.ts';

export function checkResult({ text, path, env }: CheckTask): CheckResult {
  try {
    return { kind: 'usable', input: checkedInput(checkText(fileSchema, text, { path, env })) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { kind: 'refused', problems: error.problems };
  }
}
