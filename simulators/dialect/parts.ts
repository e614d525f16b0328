/** A dialect as a configuration writes it (`speaks`), for the simulator that enforces it. Types only. */

export interface SpokenWindow {
  readonly requests: number;
  readonly seconds: number;
  readonly kind?: 'rolling' | 'fixed' | 'leaky' | undefined;
}

export interface SpokenField {
  readonly name: string;
  readonly member?: string | undefined;
  readonly as?: string | undefined;
}

export interface SpokenFields {
  readonly limit?: string | SpokenField | undefined;
  readonly used?: string | SpokenField | undefined;
  readonly remaining?: string | SpokenField | undefined;
  readonly reset?: string | SpokenField | undefined;
  readonly window?: number | string | SpokenField | undefined;
  readonly rate?: string | SpokenField | undefined;
}

export interface SpokenCondition {
  readonly status: number | readonly number[];
  readonly field?: string | undefined;
  readonly equals?: string | undefined;
  readonly body?: string | readonly string[] | undefined;
  readonly waitSeconds?: number | undefined;
  readonly scope?: string | undefined;
}

export interface SpokenParts {
  readonly windows?: readonly SpokenWindow[] | undefined;
  readonly fields?: SpokenFields | readonly SpokenFields[] | undefined;
  readonly throttledBy?: readonly SpokenCondition[] | undefined;
  readonly permanentBy?: readonly SpokenCondition[] | undefined;
  readonly expiredBy?: readonly SpokenCondition[] | undefined;
  readonly bucketBy?: readonly string[] | undefined;
  readonly maxInFlight?: number | undefined;
  readonly penaltySeconds?: number | undefined;
}
