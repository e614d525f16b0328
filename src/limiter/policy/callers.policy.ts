/**
 * The callers of a workspace, where calls name them: a lane's turns are shared fairly between them (start-time fair queueing, as between
 * lanes), and the calls of each go by urgency and arrival. Part of the specification in `scheduler.policy.ts`.
 *
 * Calls that name no caller are of one caller. While `maxCallers` are known, further ones are one more together. A lane has callers only
 * while calls wait that name one: whoever meets an empty line owes nobody a turn.
 */
import { callerKey, type CallerKey, type TicketId } from '../../ids.ts';
import type { Bucket, Callers, Lane, Ticket } from './bucket-state.policy.ts';
import { SortedNames } from './sorted.policy.ts';
import { meanServiceCost, serviceCost } from './waiting-costs.policy.ts';

/** Callers of a lane that are told apart at a time. */
export const maxCallers = 1_000;
/** Those beyond them, and calls that name none. */
const further = callerKey('other');
export const unnamed = callerKey('');

/** Less than this part of a call is the error of a division. */
export const rounding = 1e-9;

/** A call in its lane, or about to enter it. */
export interface Standing {
  readonly id: TicketId;
  readonly order: number;
  /** Absent: it names none. */
  readonly caller?: CallerKey | undefined;
}

/** The ticket has entered the lane's line: it stands among the calls of its caller. */
export function joinCaller(lane: Lane, ticket: Ticket): void {
  if (lane.callers === null && ticket.caller === undefined) return;
  const callers = (lane.callers ??= callersOf(lane, ticket));
  const name = knownAs(callers, ticket.caller);
  if (ticket.caller !== undefined) ticket.caller = name;
  let own = callers.lines.get(name);
  if (own === undefined) {
    if (callers.lines.size >= maxCallers) for (const idle of idleIn(callers)) callers.lines.delete(idle);
    own = { line: new SortedNames(), start: callers.virtual };
    callers.lines.set(name, own);
  }
  if (own.line.size === 0) own.start = Math.max(own.start, callers.virtual);
  own.line.set(ticket.id, ticket.order);
  callers.turns.set(name, own.start);
}

/** The first call that names its caller comes: those that wait in its lane have named none. */
function callersOf({ line }: Lane, { id }: Ticket): Callers {
  const callers: Callers = { virtual: 0, lines: new Map(), turns: new SortedNames() };
  const waiting = new SortedNames<TicketId>();
  for (const other of line.names()) if (other !== id) waiting.set(other, line.scoreOf(other) ?? 0);
  if (waiting.size === 0) return callers;
  callers.lines.set(unnamed, { line: waiting, start: 0 });
  callers.turns.set(unnamed, 0);
  return callers;
}

/**
 * The name under which a caller stands in the lane. Further callers stay together until none of their calls waits, so that each one's
 * calls keep their order.
 */
function knownAs(callers: Callers, caller: CallerKey = unnamed): CallerKey {
  const { lines } = callers;
  if (caller === unnamed || lines.has(caller)) return caller;
  if ((lines.get(further)?.line.size ?? 0) > 0) return further;
  return lines.size < maxCallers || idleIn(callers).length > 0 ? caller : further;
}

/** Callers of whom no call waits and who have had their turn: they are as new ones. */
const idleIn = ({ virtual, lines }: Callers): CallerKey[] =>
  [...lines].flatMap(([name, { line, start }]) => (line.size === 0 && start <= virtual ? [name] : []));

/** The ticket has left the lane's line. */
export function leaveCaller(lane: Lane, { id, caller = unnamed }: Ticket): void {
  const { callers, line } = lane;
  if (callers === null) return;
  if (line.size === 0) {
    lane.callers = null;
    return;
  }
  const own = callers.lines.get(caller);
  own?.line.delete(id);
  if (own?.line.size === 0) callers.turns.delete(caller);
}

/** A call of the lane was granted, which counts for so much of its caller's share. */
export function takeTurn({ callers }: Lane, { caller = unnamed }: Ticket, service: number): void {
  const own = callers?.lines.get(caller);
  if (callers === null || own === undefined) return;
  callers.virtual = Math.max(callers.virtual, own.start);
  own.start += service;
  if (own.line.size > 0) callers.turns.set(caller, own.start);
}

/**
 * A granted call is back in the line: its turn did not take place. However many calls of a caller come back, others wait for no more than
 * one round.
 */
export function giveTurnBack(bucket: Bucket, { callers }: Lane, { caller = unnamed, costs }: Ticket): void {
  const own = callers?.lines.get(caller);
  if (callers === null || own === undefined) return;
  own.start = Math.max(callers.virtual, own.start - serviceCost(bucket, costs));
  callers.turns.set(caller, own.start);
}

/** The call that goes first in the lane; `undefined` = none waits. */
export function firstIn({ callers, line }: Lane): TicketId | undefined {
  const next = callers?.turns.first();
  return (next === undefined ? line : callers?.lines.get(next.name)?.line)?.first()?.name;
}

/** How many calls of the lane go before this one: those of its caller, and of each other one as many as have smaller start tags. */
export function callsAhead(bucket: Bucket, lane: Lane, { id, order, caller }: Standing): number {
  const { callers, line } = lane;
  if (callers === null) return caller === undefined ? line.rank(id, order) : Math.min(line.size, 1);
  const name = knownAs(callers, caller);
  const own = callers.lines.get(name);
  const service = meanServiceCost(bucket, { costs: lane.waitingCosts, calls: line.size });
  const before = own?.line.rank(id, order) ?? 0;
  const from =
    own === undefined || own.line.size === 0 ? Math.max(own?.start ?? 0, callers.virtual) : own.start;
  let ahead = before;
  for (const [other, { line: calls, start }] of callers.lines) {
    if (other === name || calls.size === 0) continue;
    const turns = turnsBefore((from + before * service - start) / service, other < name);
    ahead += Math.min(calls.size, turns);
  }
  return ahead;
}

/** How many calls of a line, whose first call is so many calls ahead of a start tag, go before it. Of equal tags the first name goes first. */
export const turnsBefore = (shares: number, isFirst: boolean): number =>
  Math.max(0, isFirst ? Math.floor(shares + rounding) + 1 : Math.ceil(shares - rounding));
