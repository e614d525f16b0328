/**
 * The code of a file without its comments and strings, and its comments alone, for checks that concern one of them. Owns: where
 * comments, strings, templates and regular expressions of TypeScript and Lua begin and end. A line keeps its number.
 */

/** What a file is written in; prose has no code. */
export type Language = 'script' | 'lua' | 'prose';

const script =
  /\/\/[^\n]*|\/\*[^]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|(?<=[=(,:!&|?{};[\s])\/(?![*/ ])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+\/[a-z]*(?=[\s.,;)\]])|[`{}]/gy;
const lua = /--\[\[[^]*?\]\]|--[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"/gy;
/** The text of a template up to its end or its next expression. */
const template = /(?:\\[^]|\$(?!\{)|[^`\\$])*(?:`|\$\{|$)/gy;

/** `text` with everything that is no code blank. */
export function codeOnly(text: string, language: Language): string {
  return partsOf(text, language).code;
}

/** `text` with everything blank that is not in a comment. */
export function commentsOnly(text: string, language: Language): string {
  return partsOf(text, language).comments;
}

function partsOf(text: string, language: Language): { code: string; comments: string } {
  if (language === 'prose') return { code: blank(text), comments: blank(text) };
  const opaque = language === 'lua' ? lua : script;
  const code: string[] = [];
  const comments: string[] = [];
  /** Of each template around this place: how many braces its expression has open. */
  const open: number[] = [];
  let at = 0;
  const skip = (pattern: RegExp): string => {
    pattern.lastIndex = at;
    const [found = ''] = pattern.exec(text) ?? [];
    at += found.length;
    return found;
  };
  const inTemplate = (): void => {
    const found = skip(template);
    code.push(blank(found));
    comments.push(blank(found));
    if (found.endsWith('${')) open.push(0);
  };
  while (at < text.length) {
    const found = skip(opaque);
    const depth = open.at(-1);
    code.push(found === '' ? text.charAt(at) : blank(found));
    comments.push(isComment(found) ? found : blank(found === '' ? text.charAt(at) : found));
    if (found === '') at += 1;
    else if (found === '`') inTemplate();
    else if (found === '{' && depth !== undefined) open[open.length - 1] = depth + 1;
    else if (found === '}' && depth !== undefined) {
      open.pop();
      if (depth === 0) inTemplate();
      else open.push(depth - 1);
    }
  }
  return { code: code.join(''), comments: comments.join('') };
}

/** A regular expression cannot begin with two slashes, nor with a slash and a star. */
const isComment = (found: string): boolean => /^(?:\/\/|\/\*|--)/.test(found);

/** Spaces in place of everything but line ends. */
const blank = (text: string): string => text.replaceAll(/[^\n]/g, ' ');
