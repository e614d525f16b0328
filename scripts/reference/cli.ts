/** The page of commands: what each says of itself with `--help`. */
import { commandNames, commands } from '../../src/cli/commands.ts';

/** The text of docs/reference/cli.md. */
export function cliPage(): string {
  const usages = new Map(commandNames.map((name) => [name.split(' ')[0], commands[name].usage]));
  const sections = [...usages].map(([word, usage]) => `## ${word}\n\n\`\`\`text\nUsage: ${usage}\n\`\`\`\n`);
  return `# Commands

From the repository: \`npm run sluice -- <command>\`. Of a build: \`node --max-semi-space-size=16 dist/main.js <command>\`. In the image,
and in a pod: \`node dist/main.js <command>\`.

| exit code | means |
|---|---|
| 0 | done |
| 1 | it cannot be done: problems in the file, a connection that failed, a port that is taken, no answer at the admin port |
| 2 | the command line cannot be read |

| signal to \`serve\` | does |
|---|---|
| SIGHUP | reads the configuration again, changed or not |
| SIGTERM | drains: [Shut down](../operate/day-2.md#shut-down) |
| SIGINT (Ctrl-C) | the same without \`drainDelaySeconds\` |
| a second one, half a second later or more | ends at once |

${sections.join('\n')}`;
}
