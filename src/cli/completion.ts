/** `sluice completion`: a script for a shell that completes commands and their options, made of the table of commands. */

export const shells = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof shells)[number];

/** What of a command can be completed. */
export interface Completed {
  /** Its words, such as `keys create`. */
  readonly name: string;
  readonly purpose: string;
  /** Its options, with their dashes. */
  readonly options: readonly string[];
}

/** The script. Load it with `source <(sluice completion bash)`, the same for zsh, or `sluice completion fish | source`. */
export const completionFor = (shell: Shell, commands: readonly Completed[]): string =>
  shell === 'fish' ? fish(commands) : bash(commands, shell);

/** First words, each once. */
const firstWords = (commands: readonly Completed[]): readonly string[] => [
  ...new Set(commands.map(({ name }) => name.split(' ')[0] ?? '')),
];

function bash(commands: readonly Completed[], shell: Exclude<Shell, 'fish'>): string {
  const verbsOf = (first: string): readonly string[] =>
    commands.flatMap(({ name }) => (name.startsWith(`${first} `) ? [name.slice(first.length + 1)] : []));
  const cases = firstWords(commands).map((first) => {
    const own = commands.filter(({ name }) => name.split(' ')[0] === first);
    const options = [...new Set(own.flatMap((each) => each.options))];
    return `    ${first}) words="${[...verbsOf(first), ...options].join(' ')}" ;;`;
  });
  return `${shell === 'zsh' ? 'autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n' : ''}_sluice() {
  local words
  case "\${COMP_WORDS[1]}" in
${cases.join('\n')}
    *) words="" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="${firstWords(commands).join(' ')}"
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _sluice sluice`;
}

function fish(commands: readonly Completed[]): string {
  const firsts = firstWords(commands);
  const lines = commands.flatMap(({ name, purpose, options }) => {
    const [first = '', verb] = name.split(' ');
    const isFirst = `not __fish_seen_subcommand_from ${firsts.join(' ')}`;
    const own = `__fish_seen_subcommand_from ${first}`;
    return [
      `complete -c sluice -f -n '${isFirst}' -a ${first} -d '${verb === undefined ? purpose : first}'`,
      ...(verb === undefined ? [] : [`complete -c sluice -f -n '${own}' -a ${verb} -d '${purpose}'`]),
      ...options.map((option) => `complete -c sluice -n '${own}' -l ${option.replace('--', '')}`),
    ];
  });
  return [...new Set(lines)].join('\n');
}
