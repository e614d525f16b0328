/** A dialect after validation: how an upstream of kind generic counts, reports and refuses. Types only. */

/** Which meter counts a window. */
export type WindowMeter = 'requests_burst' | 'requests' | 'requests_hour' | 'requests_day';

export interface DialectWindow {
  readonly meter: WindowMeter;
  readonly requests: number;
  readonly windowMs: number;
  readonly kind: 'rolling' | 'fixed' | 'leaky';
}

/** Unit of a time in a field. `date`: HTTP-date or RFC 3339; `duration`: `1m30s`; `inferred`: by the form of the value. */
export type TimeUnit =
  'seconds' | 'milliseconds' | 'epoch-seconds' | 'epoch-milliseconds' | 'date' | 'duration' | 'inferred';

/** Where a number stands: a field, and the name before it in a value of several. Lower case. */
export interface CountField {
  readonly name: string;
  readonly member: string | null;
}

export interface TimeField extends CountField {
  readonly as: TimeUnit;
}

/** Fields that report one quota; `null` = not reported. */
export interface DialectFields {
  readonly limit: CountField | null;
  readonly used: CountField | null;
  readonly remaining: CountField | null;
  readonly reset: TimeField | null;
  /** A length in milliseconds, or the field with it. */
  readonly window: number | TimeField | null;
  /** Calls per second. */
  readonly rate: CountField | null;
}

/** A response that means something beside its status. All parts must hold; `null` = anything will do. */
export interface ResponseCondition {
  readonly statuses: readonly number[];
  readonly field: string | null;
  readonly equals: string | null;
  /** Lower case. */
  readonly body: string | null;
  /** Wait where the response names none, milliseconds; `null` = none. */
  readonly waitMs: number | null;
}

/** Where a refusal states its wait. */
export type WaitPlace =
  | { readonly kind: 'field'; readonly field: TimeField }
  /** A JSON Pointer (RFC 6901), unescaped. */
  | { readonly kind: 'member'; readonly pointer: readonly string[]; readonly as: TimeUnit }
  /** Source of a regular expression whose one group is the time; case does not matter. */
  | { readonly kind: 'sentence'; readonly pattern: string; readonly as: TimeUnit };

/** The part of a call that distinguishes its quota from others of the upstream. */
export type Separator =
  /** The path up to these segments; `null` = any one. */
  | { readonly kind: 'path'; readonly segments: readonly (string | null)[] }
  | { readonly kind: 'header'; readonly name: string }
  /** A JSON Pointer (RFC 6901), unescaped. */
  | { readonly kind: 'body'; readonly pointer: readonly string[] };

export interface Dialect {
  /** Shortest first. */
  readonly windows: readonly DialectWindow[];
  /** `null`: the fields that no provider owns. */
  readonly fields: readonly DialectFields[] | null;
  readonly throttledBy: readonly ResponseCondition[];
  readonly permanentBy: readonly ResponseCondition[];
  readonly expiredBy: readonly ResponseCondition[];
  readonly separators: readonly Separator[];
  readonly penaltyMs: number | null;
  /** Places beside the usual ones; they go before those. */
  readonly waitIn: readonly WaitPlace[];
  /** Wait after a refusal that names none; `null`: a growing back-off. */
  readonly hintlessMs: number | null;
  /** Statuses below 400 whose bodies a condition or a wait reads. */
  readonly bodyStatuses: readonly number[];
}
