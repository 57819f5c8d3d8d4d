// SPDX-License-Identifier: Apache-2.0
// The tokens of a session that the store of its replicas may not have yet.
import { AppendRequest } from './gen/rivulet/v1/session_service';
import type { Durability } from './replies';
import { knownTokens } from './requests';
import { hashTokens } from './sequence';

/** The content of a request. */
export type Given = Partial<
  Pick<AppendRequest, 'content' | 'addSpecialTokens' | 'parseSpecialTokens'>
>;

/** Tokens `begin` to `end` of the session, or no tokens and a mark at that position. */
interface Piece {
  begin: number;
  end: number;
  // The session's hash at `begin`, if it is known.
  hash: bigint | undefined;
  // Absent: `text` is set, whose tokens only the server knows.
  tokens?: number[];
  text?: Given;
  mark: string;
}

/**
 * The given and received tokens after the last durable position, to be given again if the replica
 * is lost. Empty after each reply if no store is shared.
 */
export class Pending {
  #pieces: Piece[] = [];
  #shared = false; // a reply has had `durability`

  get empty(): boolean {
    return !this.#shared || this.#pieces.length === 0;
  }

  /** Called when everything is durable. */
  clear(): void {
    this.#pieces = [];
  }

  /** Drops everything after a position. If a part of a text is dropped, the whole text is. */
  cut(position: number): void {
    for (const piece of this.#pieces) {
      if (piece.tokens === undefined || piece.begin >= position || piece.end <= position) continue;
      piece.tokens.length = position - piece.begin;
      piece.end = position;
    }
    this.#pieces = this.#pieces.filter(({ end }) => end <= position);
  }

  /** The session's hash at a position; undefined if it is not known. */
  hashAt(position: number): bigint | undefined {
    for (const { begin, end, hash, tokens } of this.#pieces) {
      if (hash === undefined || position < begin || position > end) continue;
      if (position === begin) return hash;
      if (tokens !== undefined) return hashTokens(tokens.slice(0, position - begin), hash);
    }
    return undefined;
  }

  /** Adds `given`, which brought the session from `begin`, where it has this hash, to `end`. */
  add(begin: number, end: number, hash: bigint | undefined, given: Given): void {
    if (end <= begin) return;
    const { content, addSpecialTokens, parseSpecialTokens } = given;
    const tokens = knownTokens(content);
    const text = { content, addSpecialTokens, parseSpecialTokens };
    const what = tokens === undefined ? { text } : { tokens: Array.from(tokens) };
    this.#pieces.push({ begin, end, hash, ...what, mark: '' });
  }

  /** Adds generated tokens. */
  extend(begin: number, hash: bigint | undefined, tokens: readonly number[]): void {
    const last = this.#pieces.at(-1);
    if (last?.tokens === undefined || last.hash === undefined || last.mark !== '' || last.end !== begin) {
      this.add(begin, begin + tokens.length, hash, { content: { $case: 'tokens', value: { ids: [...tokens] } } });
      return;
    }
    for (const token of tokens) last.tokens.push(token);
    last.end += tokens.length;
  }

  /** Called when a request has ended at a position and set the mark, if not empty. */
  ended(position: number, hash: bigint, mark: string, durability: Durability | undefined): void {
    if (mark !== '') this.#pieces.push({ begin: position, end: position, hash, tokens: [], mark });
    if (durability === undefined) {
      this.clear();
      return;
    }
    this.#shared = true;
    const at = durability.position; // a mark at this position may not be durable yet
    this.#pieces = this.#pieces.filter(({ end, mark: name }) => end > at || (end === at && name !== ''));
  }

  /**
   * The requests, in order, that bring the session from position `found` to `target`. Each has its
   * mark and no position. Empty: the tokens are not known, or nothing is missing. Neither position
   * may be within a text.
   */
  missing(found: number, target: number): AppendRequest[] {
    const requests: AppendRequest[] = [];
    let at = found;
    for (const piece of found < target ? this.#pieces : []) {
      const { begin, tokens, text, mark } = piece;
      const end = Math.min(piece.end, target);
      if (end < at || begin > target || (end === at && mark === '')) continue;
      if (begin > at) return [];
      const ids = tokens?.slice(at - begin, end - begin) ?? [];
      const given = text ?? { content: { $case: 'tokens', value: { ids } } };
      requests.push(AppendRequest.fromPartial({ ...given, session: { mark } }));
      at = end;
    }
    return at === target ? requests : [];
  }
}
