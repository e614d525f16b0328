/**
 * What a 402 means, and which refusals concern one call alone: in the words of the providers, as tables.
 *
 * A 402 may say that the account has no money, that this call asks for more than there is, or that too much of the money is bound in
 * calls under way. The first concerns everybody who uses the credential, the second nobody else, the third ends by itself.
 *
 * Owns: those words. Does not own: codes that every provider uses (`model-error.policy.ts`), waits. Invariant: linear, bounded; the
 * first line of a table that fits decides.
 */

/** How much of a text is looked at, characters. */
const maxText = 2_000;

/** `later`: it ends by itself · `quota`: the money is gone · `unclear`: none of these words is there. */
export type Payment = 'later' | 'quota' | 'unclear';

/** Codes and types of errors that lie in the call itself. */
const aloneCodes =
  /context_(?:length|window)|long_context|(?:request|prompt|input|body|payload|message|content)_too_(?:large|long)|above_max_length|max_(?:output_|completion_)?tokens|prompt_tokens_limit/;

/** Sentences of refusals with any status that lie in the call itself. None of them is written by a limiter of rates. */
const aloneInAnyStatus: readonly RegExp[] = [
  // Anthropic: "Extra usage is required for long context requests.", "The long context beta is not yet available for this subscription."
  /\b(?:required?|requires|available|enabled|included|upgrade|credits)\b[^.]{0,60}\blong[- ]context\b/i,
  /\blong[- ]context\b[^.]{0,60}\b(?:required?|requires|available|enabled|included|upgrade|credits)\b/i,
  // OpenAI and those that speak its form.
  /\bmaximum context length\b|\bcontext (?:length|window)\b[^.]{0,20}\bexceed/i,
  /\bexceeds?\b[^.]{0,30}\b(?:context (?:length|window|size|limit)|maximum (?:number of )?(?:input |prompt )?tokens)/i,
  /\b(?:prompt|input|request(?: entity| body)?|payload)\b(?: is)? too (?:large|long)\b/i,
];

/** What a call asks for, as far as less of it costs less. No plural of "request": fewer requests are other calls. */
const partOfCall =
  'tokens?|max_\\w+|prompt|context|input|output|request|message|text|characters|model|size|length|duration|seconds|resolution|quality|steps|frames|samples?|variants?|variations?|completions?|generations?|images?|pictures?|videos?|audio|files?|documents?|batch(?: size)?|n|num_\\w+';
/** One call, as providers name it. */
const thisCall =
  'th(?:is|e|at) (?:request|call|prompt|generation|completion|message|input|model|operation|action|image|picture|video|audio|context|job|task)|the (?:requested|specified|given) (?:number|amount|size|length|resolution|duration|model|output|tokens|images?)|(?:the|this) number of (?:tokens|images|pictures|characters)';
/** Characters of one sentence: the point of a number does not end it. */
const within = (n: number): string => `(?:[^.]|\\.(?=\\d)){0,${n}}`;
const words = (pattern: string): RegExp => new RegExp(pattern, 'i');

/** Sentences of a 402 that lie in the call itself. */
const aloneIn402: readonly RegExp[] = [
  // What asks for less of the call. OpenRouter: "This request requires more credits, or fewer max_tokens."
  words(
    `\\b(?:reduc(?:e|ing)|lower(?:ing)?|shorten(?:ing)?|decreas(?:e|ing)|trim|truncate|split|fewer|less|smaller|shorter|cheaper)\\b${within(30)}\\b(?:${partOfCall})\\b`,
  ),
  words(`\\blimit (?:the |your |its )?(?:${partOfCall})\\b`),
  words(
    `\\b(?:tokens|max_\\w+|prompt|context|input|output|request|n)\`? (?:is |are )?too (?:high|large|long|big|many)\\b`,
  ),
  /\b(?:can ?not|can't|can only|unable to|only) afford\b/i,
  // OpenRouter: "Prompt tokens limit exceeded: 50000 > 20000."
  /\b(?:prompt|input|output|completion|context)\b[^.]{0,30}\blimit\b[^.]{0,20}\bexceeded\b/i,
  // What compares the amount asked for with the one there is.
  // Stability: "… does not have enough balance to request this action (need 6.5 credits, have 2)"
  /\b(?:needs?|requires?|required|costs?|requested|requesting|asks? for|asked for|would (?:use|take|consume))\b[^.]{0,20}\d[^]{0,60}\b(?:have|has|had|left|remains?|remaining|available|covers?|covered|affordable|allows?|balance|only)\b/i,
  // ElevenLabs: "This request exceeds your quota. You have 12 credits remaining, while 120 credits are required for this request."
  /\b(?:have|has|had|left|remains?|remaining|available|covers?|balance)\b[^]{0,60}\d[^]{0,40}\b(?:needs?|requires?|required|requested|costs?|asks? for|asked for)\b/i,
  words(
    `\\b(?:estimated|expected|requested|maximum|this|the|request|call|generation)\\b${within(20)}\\b(?:cost|price|charge|amount|tokens|images)\\b${within(30)}\\b(?:exceeds?|(?:higher|more|larger|greater) than|above|beyond|not covered)\\b${within(40)}\\b(?:balance|credits|budget|funds|left|remaining|available|afford|covers?)\\b`,
  ),
  words(
    `\\b\\d[\\d,.]{0,12} (?:more|additional) \\w+${within(10)}\\b(?:to|for)\\b${within(25)}\\b(?:${thisCall})\\b`,
  ),
  /\b(?:this|your|the) (?:request|call|prompt|generation|completion|message|input|model|operation|image|video)\b[^.]{0,20}\b(?:requires?|costs?|needs?|would cost|would exceed|exceeds?|is too)\b/i,
  words(
    `\\b(?:required?|needed|enough|sufficient|insufficient|too (?:low|little|small)|(?:not|n't|cannot) cover)\\b${within(30)}(?:\\b(?:for|to \\w+)|(?<=cover)) (?:the (?:cost|price) of )?(?:${thisCall})\\b`,
  ),
];

/** The whole account is concerned, whatever the call asks for: there is nothing left, or less than any call needs. */
const wholeAccount: readonly RegExp[] = [
  /\b(?:afford|have|has|remaining|left|balance|available|covers?)\b(?: (?:is|of|only))?:? ?[$€£¥]? ?0+(?:\.0+)?(?![\d.]*\d)/i,
  /(?<![\d.,])0+(?:\.0+)? (?:credits?|tokens|usd|dollars)\b[^.]{0,20}\b(?:left|remaining|available)\b/i,
  /\bno (?:more |remaining |available )?(?:credits?|balance|funds|money)\b/i,
  /\b(?:balance|credits?|account|funds)\b[^.\d]{0,20}(?:\bnegative\b|\bempty\b|\bzero\b|[-−][$€£¥]?\d)/i,
  /\b(?:ran|run) out of\b|\bused up\b|(?<!would be )\b(?:exhausted|depleted)\b/i,
  /\bminimum (?:account )?(?:balance|deposit|top[- ]?up|credits?)\b/i,
];

/** What ends by itself: OpenRouter's `openrouter_in_flight_budget`, caps on calls at once. */
const laterWords =
  /\bin[- _]flight\b|in_flight|\bconcurren|\bsimultaneous|\btoo many (?:requests|calls)\b|\brate limit(?:ed)?\b/i;

/** What a spent account is told. */
const quotaWords =
  /balance|credits?\b|usage|\b(?:monthly|weekly|daily|hard|key|account|organization|project|workspace|team)(?:'s)? limit|[$€£¥] ?\d|\d ?(?:usd|eur|dollars)\b|billing|insufficient|funds|payment|\bpaid\b|pay[- ]as|purchase|quota|top(?:ped)?[- ]?up|recharge|refill|subscri|overdue|arrears|suspend|deactivat|budget|spend|prepa(?:id|y)|\bplan\b|trial|invoice|\bcharges?\b|money|allowance|exhausted|depleted|\bowed?\b|debt|upgrade|余额|余額|欠费|欠費|充值|额度|額度|账户|残高|クレジット/i;

export interface RefusalWords {
  readonly status: number;
  /** Codes and type, lower case. */
  readonly names: readonly string[];
  readonly text: string;
}

const isWholeAccount = (text: string): boolean => wholeAccount.some((pattern) => pattern.test(text));

/** True for a refusal that lies in the call itself: it says nothing about any other. */
export function concernsCallAlone({ status, names, text }: RefusalWords): boolean {
  if (names.some((name) => aloneCodes.test(name))) return true;
  const read = text.slice(0, maxText);
  if (aloneInAnyStatus.some((pattern) => pattern.test(read))) return true;
  const asksForMoney = status === 402 || names.includes('quota_exceeded');
  return asksForMoney && aloneIn402.some((pattern) => pattern.test(read)) && !isWholeAccount(read);
}

/** What a 402 says, beyond what `concernsCallAlone` finds. One without a word has only its status, which asks for money. */
export function paymentIn({ names, text }: RefusalWords): Payment {
  // The status in words adds nothing to it.
  const said = names.filter((name) => name !== 'payment_required');
  const read = [...said, text].join(' ').slice(0, maxText);
  if (laterWords.test(read)) return 'later';
  const isSpent = text.trim() === '' || quotaWords.test(read) || isWholeAccount(read);
  return isSpent ? 'quota' : 'unclear';
}
