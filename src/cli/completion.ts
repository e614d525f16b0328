/** `sluice completion`: a script for a shell that completes commands and their options, made of the table of commands. */

export const shells = ['bash', 'zsh', 'fish'] as const;

type Commands = Readonly<Record<string, { readonly optionNames: readonly string[] }>>;

/** The script. Load it with `source <(sluice completion bash)`, the same for zsh, or `sluice completion fish | source`. */
export function completionFor(shell: (typeof shells)[number], commands: Commands): string {
  /** What may stand behind each first word: second words, and options. */
  const behind = new Map<string, Set<string>>();
  for (const [name, { optionNames }] of Object.entries(commands)) {
    const [first = '', ...verbs] = name.split(' ');
    behind.set(first, new Set([...(behind.get(first) ?? []), ...verbs, ...optionNames]));
  }
  const firsts = [...behind.keys()].join(' ');
  if (shell === 'fish')
    return [
      `complete -c sluice -f -n '__fish_use_subcommand' -a '${firsts}'`,
      ...[...behind].map(
        ([first, words]) =>
          `complete -c sluice -n '__fish_seen_subcommand_from ${first}' -a '${[...words].join(' ')}'`,
      ),
    ].join('\n');
  const cases = [...behind].map(([first, words]) => `    ${first}) words="${[...words].join(' ')}" ;;`);
  const zsh = 'autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n';
  return `${shell === 'zsh' ? zsh : ''}_sluice() {
  local words
  case "\${COMP_WORDS[1]}" in
${cases.join('\n')}
    *) words="" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="${firsts}"
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _sluice sluice`;
}
